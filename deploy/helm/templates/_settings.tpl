{{- /* A number of values.yaml is a float to Helm, and large ones would be written as 1.6777216e+07. */ -}}
{{- define "tidelog.plain" -}}
{{- if and (kindIs "float64" .) (eq (floor .) .) -}}{{ int64 . }}{{- else -}}{{ . }}{{- end -}}
{{- end -}}

{{- /* preStop runs until the drain is over, and until Services send no more connections to the pod. */ -}}
{{- define "tidelog.preStopSeconds" -}}
{{ add (max (add (int .Values.broker.preStop.drainSeconds) 5) (int .Values.broker.preStop.endpointSeconds)) 1 }}
{{- end -}}

{{- /* preStop, then what SIGTERM takes at most (docs/guides/cluster.md): drain_timeout_ms + put_deadline_ms + shutdown_grace_ms + 2 s. */ -}}
{{- define "tidelog.leastGraceSeconds" -}}
{{- $s := .Values.settings -}}
{{- $ms := add (int ($s.drain_timeout_ms | default 20000)) (int ($s.put_deadline_ms | default 30000)) (int ($s.shutdown_grace_ms | default 10000)) -}}
{{ add (int (include "tidelog.preStopSeconds" .)) (ceil (divf $ms 1000.0) | int) 2 }}
{{- end -}}

{{- define "tidelog.graceSeconds" -}}
{{ .Values.broker.terminationGracePeriodSeconds | default (include "tidelog.leastGraceSeconds" .) | int }}
{{- end -}}

{{- /* Settings of brokers and compactors alike, as NAME: value. */ -}}
{{- define "tidelog.sharedSettings" -}}
{{- $v := .Values -}}
TIDELOG_LOG_FORMAT: {{ $v.logging.format | quote }}
TIDELOG_LOG_LEVEL: {{ $v.logging.level | quote }}
{{- with $v.tracing.otlpEndpoint }}
TIDELOG_OTLP_ENDPOINT: {{ . | quote }}
{{- end }}
{{- if not $v.dev.enabled }}
TIDELOG_BUCKET: {{ $v.bucket | quote }}
TIDELOG_ETCD: {{ include "tidelog.etcdEndpoints" . | quote }}
TIDELOG_CLUSTER: {{ $v.clusterName | quote }}
{{- with $v.s3.region }}
TIDELOG_REGION: {{ . | quote }}
{{- end }}
{{- with $v.s3.endpoint }}
TIDELOG_ENDPOINT_URL: {{ . | quote }}
{{- end }}
{{- with $v.etcd.username }}
TIDELOG_ETCD_USER: {{ . | quote }}
TIDELOG_ETCD_PASSWORD_FILE: /etc/tidelog/etcd/password
{{- end }}
{{- if $v.etcd.tls.existingSecret }}
{{- with $v.etcd.tls.caKey }}
TIDELOG_ETCD_CA: /etc/tidelog/etcd-tls/{{ . }}
{{- end }}
{{- if $v.etcd.tls.certKey }}
TIDELOG_ETCD_CERT: /etc/tidelog/etcd-tls/{{ $v.etcd.tls.certKey }}
TIDELOG_ETCD_KEY: /etc/tidelog/etcd-tls/{{ $v.etcd.tls.keyKey }}
{{- end }}
{{- end }}
{{- end }}
{{- range $name, $value := $v.settings }}
TIDELOG_{{ upper $name }}: {{ include "tidelog.plain" $value | quote }}
{{- end }}
{{- end -}}

{{- /* Settings of the listeners: authentication and TLS. */ -}}
{{- define "tidelog.doorSettings" -}}
{{- $v := .Values -}}
{{- if not (and $v.tls.enabled (or $v.auth.enabled (eq $v.tls.clientAuth "required"))) }}
TIDELOG_INSECURE_LISTENERS: "true"
{{- end }}
{{- if $v.tls.enabled }}
TIDELOG_TLS_CERT_FILE: /etc/tidelog/tls/{{ $v.tls.certKey }}
TIDELOG_TLS_KEY_FILE: /etc/tidelog/tls/{{ $v.tls.keyKey }}
TIDELOG_TLS_CLIENT_AUTH: {{ $v.tls.clientAuth | quote }}
TIDELOG_TLS_PEER_NAME: {{ include "tidelog.serverName" . | quote }}
{{- if ne $v.tls.clientAuth "off" }}
TIDELOG_TLS_CLIENT_CA_FILE: {{ if $v.tls.clientCaSecret }}/etc/tidelog/client-ca/{{ $v.tls.clientCaKey }}{{ else }}/etc/tidelog/tls/{{ $v.tls.caKey }}{{ end }}
{{- end }}
{{- if $v.tls.caKey }}
TIDELOG_TLS_PEER_CA_FILE: /etc/tidelog/tls/{{ $v.tls.caKey }}
{{- else if ne $v.tls.clientAuth "off" }}
{{- /* Else the brokers would check each other by the CA of the clients. */}}
TIDELOG_TLS_PEER_CA_FILE: /etc/ssl/certs/ca-certificates.crt
{{- end }}
{{- end }}
{{- if $v.auth.enabled }}
TIDELOG_AUTHENTICATION: "true"
TIDELOG_ADMIN_KEY_FILE: /etc/tidelog/admin/{{ $v.auth.adminKeyKey }}
TIDELOG_METRICS_OPEN: {{ $v.auth.metricsOpen | quote }}
TIDELOG_AUDIT_LOG: {{ $v.auth.auditLog | quote }}
{{- with $v.auth.adminPrincipals }}
TIDELOG_ADMIN_PRINCIPALS: {{ join "," . | quote }}
{{- end }}
{{- if ne $v.tls.clientAuth "off" }}
TIDELOG_TLS_PRINCIPAL: {{ $v.auth.tlsPrincipal | quote }}
{{- end }}
{{- if $v.auth.oidc.issuer }}
TIDELOG_OIDC_ISSUER: {{ $v.auth.oidc.issuer | quote }}
TIDELOG_OIDC_AUDIENCE: {{ $v.auth.oidc.audience | quote }}
TIDELOG_OIDC_PRINCIPAL_CLAIM: {{ $v.auth.oidc.principalClaim | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{- /* Of what runs as a client: preStop and `helm test`. */ -}}
{{- define "tidelog.clientVariables" -}}
{{- if .Values.auth.enabled }}
TIDELOG_API_KEY_FILE: /etc/tidelog/admin/{{ .Values.auth.adminKeyKey }}
{{- end }}
{{- if .Values.tls.enabled }}
TIDELOG_TLS_SERVER_NAME: {{ include "tidelog.serverName" . | quote }}
{{- with .Values.tls.caKey }}
TIDELOG_CA_FILE: /etc/tidelog/tls/{{ . }}
{{- end }}
{{- /* Where it is not asked for, none is shown: the CA of the clients need not know the brokers. */}}
{{- if eq .Values.tls.clientAuth "required" }}
TIDELOG_CERT_FILE: /etc/tidelog/tls/{{ .Values.tls.certKey }}
TIDELOG_KEY_FILE: /etc/tidelog/tls/{{ .Values.tls.keyKey }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "tidelog.brokerSettings" -}}
{{- $ip := ternary "[$(POD_IP)]" "$(POD_IP)" .Values.broker.ipv6 -}}
{{- $all := ternary "[::]" "0.0.0.0" .Values.broker.ipv6 -}}
{{- $ports := .Values.broker.ports -}}
TIDELOG_HTTP: {{ printf "%s:%d" $all (int $ports.http) | quote }}
TIDELOG_GRPC: {{ printf "%s:%d" $all (int $ports.grpc) | quote }}
{{- include "tidelog.kafkaSettings" . }}
{{- if .Values.dev.enabled }}
TIDELOG_DATA_DIR: /var/lib/tidelog
{{- else }}
TIDELOG_ADVERTISE_HTTP: {{ printf "%s:%d" $ip (int $ports.http) | quote }}
TIDELOG_ADVERTISE_GRPC: {{ printf "%s:%d" $ip (int $ports.grpc) | quote }}
{{- with .Values.broker.diskCache.gibibytes }}
TIDELOG_DATA_DIR: /var/lib/tidelog
TIDELOG_DISK_CACHE_BYTES_MAX: {{ . }}GiB
{{- end }}
{{- with .Values.broker.rack.name }}
TIDELOG_RACK: {{ . | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "tidelog.compactorSettings" -}}
TIDELOG_SCRATCH_DIR: /var/lib/tidelog
TIDELOG_SCRATCH_BYTES_MAX: {{ div (mul (int .Values.compactor.scratch.gibibytes) 7168) 8 }}MiB
{{- end -}}

{{- /* NAME: value as the list that Kubernetes wants. A variable may use those that stand before it: $(POD_IP). */ -}}
{{- define "tidelog.asEnv" -}}
{{- range $name, $value := . }}
- name: {{ $name }}
  value: {{ $value | toString | quote }}
{{- end }}
{{- end -}}

{{- /* One number for the memory: the container's limit is what the process may take. A dict of resources. */ -}}
{{- define "tidelog.memoryEnv" -}}
{{- with .limits }}
{{- if .memory }}
- name: TIDELOG_MEMORY_BYTES_MAX
  valueFrom: {resourceFieldRef: {resource: limits.memory}}
{{- end }}
{{- end }}
{{- end -}}

{{- define "tidelog.podEnv" -}}
- name: POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
- name: TIDELOG_BROKER_ID
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
{{- if and (include "tidelog.kafkaIsExternal" .) (eq .Values.kafka.external.type "NodePort") (not .Values.kafka.external.host) }}
- name: HOST_IP
  valueFrom: {fieldRef: {fieldPath: status.hostIP}}
{{- end }}
- name: HOME
  value: /tmp
{{- end -}}

{{- /* Keys of the bucket, from a Secret. Without one, what AWS's SDK finds by itself. */ -}}
{{- define "tidelog.s3Env" -}}
{{- with .Values.s3 }}
{{- if .existingSecret }}
- name: AWS_ACCESS_KEY_ID
  valueFrom: {secretKeyRef: {name: {{ .existingSecret | quote }}, key: {{ .accessKeyIdKey | quote }}}}
- name: AWS_SECRET_ACCESS_KEY
  valueFrom: {secretKeyRef: {name: {{ .existingSecret | quote }}, key: {{ .secretAccessKeyKey | quote }}}}
{{- if .sessionTokenKey }}
- name: AWS_SESSION_TOKEN
  valueFrom: {secretKeyRef: {name: {{ .existingSecret | quote }}, key: {{ .sessionTokenKey | quote }}}}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}
