{{- define "tidelog.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 48 | trimSuffix "-" -}}
{{- end -}}

{{- define "tidelog.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 48 | trimSuffix "-" -}}
{{- else -}}
{{- $name := include "tidelog.name" . -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 48 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 48 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* Called with a dict of root and component. These select pods, so they may never change. */ -}}
{{- define "tidelog.selector" -}}
app.kubernetes.io/name: {{ include "tidelog.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "tidelog.labels" -}}
{{ include "tidelog.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
app.kubernetes.io/part-of: tidelog
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- /* The metadata of every object: a dict of root, component, name, and perhaps labels and annotations of its own. */ -}}
{{- define "tidelog.metadata" -}}
name: {{ .name }}
namespace: {{ .root.Release.Namespace }}
labels:
  {{- include "tidelog.labels" . | nindent 2 }}
  {{- with .labels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with merge (dict) (.annotations | default dict) .root.Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "tidelog.image" -}}
{{- if .image.digest -}}
{{ .image.repository }}@{{ .image.digest }}
{{- else -}}
{{ .image.repository }}:{{ .image.tag | default .tag }}
{{- end -}}
{{- end -}}

{{- define "tidelog.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "tidelog.fullname" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end -}}

{{- define "tidelog.etcdEndpoints" -}}
{{- if .Values.etcd.enabled -}}
{{- $name := printf "%s-etcd" (include "tidelog.fullname" .) -}}
{{- $urls := list -}}
{{- range until (int .Values.etcd.replicas) -}}
{{- $urls = append $urls (printf "http://%s-%d.%s.%s.svc:2379" $name . $name $.Release.Namespace) -}}
{{- end -}}
{{- join "," $urls -}}
{{- else -}}
{{- join "," .Values.etcd.endpoints -}}
{{- end -}}
{{- end -}}

{{- /* What the brokers' certificate holds. Brokers reach each other at addresses of pods, which no certificate can hold. */ -}}
{{- define "tidelog.serverName" -}}
{{ .Values.tls.serverName | default (printf "%s.%s.svc" (include "tidelog.fullname" .) .Release.Namespace) }}
{{- end -}}

{{- /* Where clients in this cluster of Kubernetes reach the brokers. */ -}}
{{- define "tidelog.url" -}}
{{ ternary "https" "http" .Values.tls.enabled }}://{{ include "tidelog.fullname" . }}.{{ .Release.Namespace }}.svc:{{ .Values.service.httpPort }}
{{- end -}}
