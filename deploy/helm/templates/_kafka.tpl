{{- /* How Kafka clients reach the brokers: each listener with the address that it advertises.

         inside    Service NAME, kafkaPort ─▶ any broker ─▶ direct: the pod of each leader; forward: the Service again
         outside   forward: one Service for all brokers; perBroker: one Service for each */ -}}

{{- define "tidelog.kafkaRoute" -}}
{{- $shown := and .Values.tls.enabled (eq .Values.broker.workload "Deployment") -}}
{{- .Values.kafka.route | default (ternary "forward" "direct" (or $shown .Values.dev.enabled)) -}}
{{- end -}}

{{- define "tidelog.kafkaIsExternal" -}}
{{- if and .Values.kafka.enabled (ne .Values.kafka.external.access "off") -}}true{{- end -}}
{{- end -}}

{{- /* The headless Service by which each pod of a StatefulSet has a name. It has the pods that are not ready as well: a broker is
       advertised from the moment when it has registered, and until it has handed over all that it leads. */ -}}
{{- define "tidelog.podsService" -}}
{{ include "tidelog.fullname" . }}-pods
{{- end -}}

{{- /* Empty for a trial, which is a Deployment whatever the others are. */ -}}
{{- define "tidelog.isStatefulSet" -}}
{{- if and (eq .Values.broker.workload "StatefulSet") (not .Values.dev.enabled) -}}true{{- end -}}
{{- end -}}

{{- /* How many brokers there may be. */ -}}
{{- define "tidelog.brokersMax" -}}
{{ ternary .Values.autoscaling.maxReplicas .Values.broker.replicas .Values.autoscaling.enabled }}
{{- end -}}

{{- define "tidelog.kafkaAddress" -}}
{{ include "tidelog.fullname" . }}.{{ .Release.Namespace }}.svc:{{ .Values.service.kafkaPort }}
{{- end -}}

{{- define "tidelog.kafkaListeners" -}}
{{- $all := ternary "[::]" "0.0.0.0" .Values.broker.ipv6 -}}
{{- $ports := .Values.broker.ports -}}
internal={{ $all }}:{{ $ports.kafka }}{{ if eq (include "tidelog.kafkaRoute" .) "forward" }}/forward{{ end }}
{{- if include "tidelog.kafkaIsExternal" . -}}
,external={{ $all }}:{{ $ports.kafkaExternal }}{{ if eq .Values.kafka.external.access "forward" }}/forward{{ end }}
{{- end -}}
{{- end -}}

{{- /* HOST:PORT of what clients outside connect to: a dict of root and ordinal, which is a number, or a variable of the shell. */ -}}
{{- define "tidelog.kafkaExternalAddress" -}}
{{- $external := .root.Values.kafka.external -}}
{{- $node := ternary "[$(HOST_IP)]" "$(HOST_IP)" .root.Values.broker.ipv6 -}}
{{- if kindIs "string" .ordinal -}}{{- $node = ternary "[$HOST_IP]" "$HOST_IP" .root.Values.broker.ipv6 -}}{{- end -}}
{{- $first := $external.advertisedPort | default (ternary $external.nodePort $external.port (eq $external.type "NodePort")) | int -}}
{{- $host := $external.host | default $node | replace "{ordinal}" (toString .ordinal) -}}
{{- $port := toString $first -}}
{{- if and (eq $external.access "perBroker") (or (eq $external.type "NodePort") (not (contains "{ordinal}" $external.host))) -}}
{{- $port = ternary (printf "$((%d + %s))" $first (toString .ordinal)) (toString (add $first (int .ordinal))) (kindIs "string" .ordinal) -}}
{{- end -}}
{{ $host }}:{{ $port }}
{{- end -}}

{{- define "tidelog.kafkaAdvertised" -}}
{{- $ip := ternary "[$(POD_IP)]" "$(POD_IP)" .Values.broker.ipv6 -}}
{{- $port := int .Values.broker.ports.kafka -}}
{{- if eq (include "tidelog.kafkaRoute" .) "forward" -}}
internal={{ include "tidelog.kafkaAddress" . }}
{{- else if include "tidelog.isStatefulSet" . -}}
internal=$(TIDELOG_BROKER_ID).{{ include "tidelog.podsService" . }}.{{ .Release.Namespace }}.svc:{{ $port }}
{{- else -}}
internal={{ $ip }}:{{ $port }}
{{- end -}}
{{- if and (include "tidelog.kafkaIsExternal" .) (eq .Values.kafka.external.access "forward") -}}
,external={{ include "tidelog.kafkaExternalAddress" (dict "root" . "ordinal" 0) }}
{{- end -}}
{{- end -}}

{{- define "tidelog.kafkaIsPerBroker" -}}
{{- if and (include "tidelog.kafkaIsExternal" .) (eq .Values.kafka.external.access "perBroker") -}}true{{- end -}}
{{- end -}}

{{- /* The command of a broker. The address of one broker outside depends on the number at the end of its pod's name. */ -}}
{{- define "tidelog.brokerCommand" -}}
{{- if include "tidelog.kafkaIsPerBroker" . }}
- sh
- -euc
- |
  ordinal="${TIDELOG_BROKER_ID##*-}"
  export TIDELOG_ADVERTISE_KAFKA="$TIDELOG_ADVERTISE_KAFKA,external={{ include "tidelog.kafkaExternalAddress" (dict "root" . "ordinal" "$ordinal") }}"
  exec tidelog serve
{{- else }}
- tidelog
- serve
{{- end }}
{{- end -}}

{{- define "tidelog.kafkaSettings" -}}
{{- if .Values.kafka.enabled }}
TIDELOG_KAFKA: {{ include "tidelog.kafkaListeners" . | quote }}
TIDELOG_ADVERTISE_KAFKA: {{ include "tidelog.kafkaAdvertised" . | quote }}
{{- end }}
{{- end -}}

{{- define "tidelog.kafkaPorts" -}}
{{- if .Values.kafka.enabled }}
- {name: kafka, containerPort: {{ .Values.broker.ports.kafka }}, protocol: TCP}
{{- end }}
{{- if include "tidelog.kafkaIsExternal" . }}
- {name: kafka-external, containerPort: {{ .Values.broker.ports.kafkaExternal }}, protocol: TCP}
{{- end }}
{{- end -}}

{{- /* The spec of a Service for clients outside: a dict of root, ordinal and selector. */ -}}
{{- define "tidelog.kafkaExternalService" -}}
{{- $external := .root.Values.kafka.external -}}
type: {{ $external.type }}
{{- if eq $external.type "LoadBalancer" }}
{{- with $external.loadBalancerClass }}
loadBalancerClass: {{ . }}
{{- end }}
{{- with $external.loadBalancerSourceRanges }}
loadBalancerSourceRanges:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- if ne $external.type "ClusterIP" }}
externalTrafficPolicy: {{ $external.externalTrafficPolicy }}
{{- end }}
selector:
  {{- toYaml .selector | nindent 2 }}
ports:
  - name: kafka
    port: {{ $external.port }}
    targetPort: kafka-external
    protocol: TCP
    {{- if eq $external.type "NodePort" }}
    nodePort: {{ add (int $external.nodePort) (int .ordinal) }}
    {{- end }}
{{- end -}}

{{- define "tidelog.kafkaChecks" -}}
{{- $v := .Values -}}
{{- $external := $v.kafka.external -}}
{{- $ports := values $v.broker.ports -}}
{{- if ne (len $ports) (len (uniq $ports)) -}}
  {{- fail "\n\nbroker.ports names one port twice." -}}
{{- end -}}
{{- if ne $external.access "off" -}}
  {{- if not $v.kafka.enabled -}}
    {{- fail "\n\nkafka.external.access is set, and kafka.enabled is off." -}}
  {{- end -}}
  {{- if and (eq $external.type "NodePort") (not $external.nodePort) -}}
    {{- fail "\n\nkafka.external.type=NodePort needs kafka.external.nodePort: brokers tell clients to connect there, so it can't be one that Kubernetes chooses." -}}
  {{- end -}}
  {{- if and (ne $external.type "NodePort") (not $external.host) -}}
    {{- fail "\n\nkafka.external.host is not set: the name or address that clients connect to.\n  --set kafka.external.host=kafka.example.com\nor, with kafka.external.access=perBroker, --set 'kafka.external.host=kafka-{ordinal}.example.com'" -}}
  {{- end -}}
{{- end -}}
{{- if eq $external.access "forward" -}}
  {{- if contains "{ordinal}" $external.host -}}
    {{- fail "\n\nkafka.external.host has {ordinal} in it, and kafka.external.access=forward is one address for all brokers.\nSet kafka.external.access=perBroker, or name one host." -}}
  {{- end -}}
{{- end -}}
{{- if eq $external.access "perBroker" -}}
  {{- if $v.dev.enabled -}}
    {{- fail "\n\nkafka.external.access=perBroker is for several brokers, and dev.enabled is one: set kafka.external.access=forward." -}}
  {{- end -}}
  {{- if ne $v.broker.workload "StatefulSet" -}}
    {{- fail "\n\nkafka.external.access=perBroker needs brokers whose names last: set broker.workload=StatefulSet, or kafka.external.access=forward." -}}
  {{- end -}}
  {{- if and (ne $external.type "NodePort") (not (contains "{ordinal}" $external.host)) (not $external.advertisedPort) -}}
    {{- fail "\n\nkafka.external.host has no {ordinal}, so all brokers have one host: set kafka.external.advertisedPort, the port of the first of them, or write a host such as kafka-{ordinal}.example.com." -}}
  {{- end -}}
  {{- $first := $external.advertisedPort | default 0 | int -}}
  {{- if eq $external.type "NodePort" -}}{{- $first = max $first (int $external.nodePort) -}}{{- end -}}
  {{- if gt (add $first (int (include "tidelog.brokersMax" .))) 65536 -}}
    {{- fail (printf "\n\n%s brokers have the ports from %d on, which end behind 65535." (include "tidelog.brokersMax" .) $first) -}}
  {{- end -}}
{{- end -}}
{{- end -}}
