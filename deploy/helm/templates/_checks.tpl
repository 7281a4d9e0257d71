{{- /* What no schema can say: values that make no sense together. Each refusal names what to set. */ -}}
{{- define "tidelog.checks" -}}
{{- $v := .Values -}}
{{- if $v.dev.enabled -}}
  {{- if or $v.bucket $v.etcd.enabled $v.etcd.endpoints -}}
    {{- fail "\n\ndev.enabled is a trial that needs neither a bucket nor an etcd, and would not use those that you have named.\nLeave out bucket and etcd, or set dev.enabled=false." -}}
  {{- end -}}
{{- else -}}
  {{- if not $v.bucket -}}
    {{- fail "\n\nbucket is not set: Tidelog keeps every record there.\n  --set bucket=s3://my-bucket/tidelog\nOr try it without: --set dev.enabled=true" -}}
  {{- end -}}
  {{- if and (not $v.etcd.enabled) (not $v.etcd.endpoints) -}}
    {{- fail "\n\nNo etcd is named: it says which broker leads what.\n  --set 'etcd.endpoints={http://etcd-0.etcd:2379,http://etcd-1.etcd:2379,http://etcd-2.etcd:2379}'\nor let the chart run a small one: --set etcd.enabled=true\nOr try it without: --set dev.enabled=true" -}}
  {{- end -}}
  {{- if and $v.etcd.enabled $v.etcd.endpoints -}}
    {{- fail "\n\netcd.enabled runs an etcd of its own, and etcd.endpoints names another one: leave one of them out." -}}
  {{- end -}}
{{- end -}}
{{- if and $v.etcd.username (not $v.etcd.existingSecret) -}}
  {{- fail "\n\netcd.username is set, and etcd.existingSecret is not: name the Secret that holds the password (its key is etcd.passwordKey)." -}}
{{- end -}}
{{- if and $v.etcd.tls.certKey (not $v.etcd.tls.keyKey) -}}
  {{- fail "\n\netcd.tls.certKey is set, and etcd.tls.keyKey is not: name both keys of the Secret." -}}
{{- end -}}
{{- if and $v.tls.enabled (not $v.tls.existingSecret) -}}
  {{- fail "\n\ntls.enabled needs tls.existingSecret: a Secret with a certificate and its key, as cert-manager makes them, or\n  kubectl create secret tls tidelog-tls --cert=tls.crt --key=tls.key" -}}
{{- end -}}
{{- if and (not $v.tls.enabled) (ne $v.tls.clientAuth "off") -}}
  {{- fail "\n\ntls.clientAuth asks for certificates of clients, and tls.enabled is off." -}}
{{- end -}}
{{- if and (ne $v.tls.clientAuth "off") (not $v.tls.caKey) (not $v.tls.clientCaSecret) -}}
  {{- fail "\n\ntls.clientAuth needs the CA of the clients' certificates: set tls.clientCaSecret, or tls.caKey." -}}
{{- end -}}
{{- if and $v.auth.enabled (not $v.auth.adminKeySecret) -}}
  {{- fail (printf "\n\nauth.enabled needs auth.adminKeySecret: the key by which you create the first ACLs, and by which brokers are drained.\nMake one, and a Secret of it:\n  KEY=\"tlk_$(openssl rand -hex 8)_$(openssl rand -hex 32)\"\n  kubectl create secret generic tidelog-admin --from-literal=%s=\"$KEY\"\n  --set auth.adminKeySecret=tidelog-admin" $v.auth.adminKeyKey) -}}
{{- end -}}
{{- if and $v.auth.enabled (not $v.tls.enabled) -}}
  {{- fail "\n\nauth.enabled needs tls.enabled: keys and tokens would travel unencrypted, and Tidelog's clients do not send them so." -}}
{{- end -}}
{{- if and $v.auth.oidc.issuer (not $v.auth.oidc.audience) -}}
  {{- fail "\n\nauth.oidc.issuer needs auth.oidc.audience: else a token that was made for any other service would do." -}}
{{- end -}}
{{- if and $v.autoscaling.enabled (gt (int $v.autoscaling.minReplicas) (int $v.autoscaling.maxReplicas)) -}}
  {{- fail "\n\nautoscaling.minReplicas is above autoscaling.maxReplicas." -}}
{{- end -}}
{{- if and $v.ingress.enabled (not $v.ingress.hosts) -}}
  {{- fail "\n\ningress.enabled needs ingress.hosts: [{host: tidelog.example.com}]" -}}
{{- end -}}
{{- if and $v.ingress.grpc.enabled (not $v.ingress.grpc.hosts) -}}
  {{- fail "\n\ningress.grpc.enabled needs ingress.grpc.hosts: [{host: grpc.tidelog.example.com}]" -}}
{{- end -}}
{{- if and $v.broker.rack.name $v.broker.rack.fromZoneLabel -}}
  {{- fail "\n\nbroker.rack.name and broker.rack.fromZoneLabel are both set: leave one of them out." -}}
{{- end -}}
{{- include "tidelog.kafkaChecks" . -}}
{{- range $name, $value := $v.settings -}}
  {{- if hasKey (include "tidelog.ownSettings" $ | fromYaml) $name -}}
    {{- fail (printf "\n\nsettings.%s is set by the chart: use %s." $name (get (include "tidelog.ownSettings" $ | fromYaml) $name)) -}}
  {{- end -}}
{{- end -}}
{{- with $v.broker.terminationGracePeriodSeconds -}}
  {{- $least := int (include "tidelog.leastGraceSeconds" $) -}}
  {{- if lt (int .) $least -}}
    {{- fail (printf "\n\nbroker.terminationGracePeriodSeconds is %d; by preStop and the settings a broker may take %d s to hand over, flush and seal.\nRaise it, or lower broker.preStop.drainSeconds and the settings drain_timeout_ms, put_deadline_ms and shutdown_grace_ms." (int .) $least) -}}
  {{- end -}}
{{- end -}}
{{- end -}}

{{- /* Settings that have a value of their own, and its name. */ -}}
{{- define "tidelog.ownSettings" -}}
bucket: bucket
region: s3.region
endpoint_url: s3.endpoint
etcd: etcd.endpoints
etcd_user: etcd.username
etcd_password: etcd.existingSecret
etcd_password_file: etcd.existingSecret
etcd_ca: etcd.tls
etcd_cert: etcd.tls
etcd_key: etcd.tls
cluster: clusterName
memory_bytes_max: broker.resources.limits.memory, and that of compactor or dev
broker_id: nothing; it is the name of the pod
http: broker.ports
grpc: broker.ports
kafka: kafka and broker.ports
advertise_kafka: kafka.route and kafka.external
advertise_http: nothing; it is the address of the pod
advertise_grpc: nothing; it is the address of the pod
rack: broker.rack
data_dir: broker.diskCache or dev.persistence
disk_cache_bytes_max: broker.diskCache
scratch_dir: compactor.scratch
scratch_bytes_max: compactor.scratch
log_format: logging.format
log_level: logging.level
otlp_endpoint: tracing.otlpEndpoint
tls_cert_file: tls.existingSecret
tls_key_file: tls.existingSecret
tls_client_ca_file: tls.clientCaSecret
tls_peer_ca_file: tls.caKey
tls_client_auth: tls.clientAuth
tls_peer_name: tls.serverName
tls_principal: auth.tlsPrincipal
insecure_listeners: nothing; it is true where tls.enabled or auth.enabled is not
authentication: auth.enabled
admin_principals: auth.adminPrincipals
admin_key_file: auth.adminKeySecret
oidc_issuer: auth.oidc.issuer
oidc_audience: auth.oidc.audience
oidc_principal_claim: auth.oidc.principalClaim
metrics_open: auth.metricsOpen
audit_log: auth.auditLog
{{- end -}}
