{{- /* What pods of brokers, compactors and tests share. */ -}}
{{- define "tidelog.podSettings" -}}
serviceAccountName: {{ include "tidelog.serviceAccountName" . }}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  {{- toYaml .Values.podSecurityContext | nindent 2 }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- /* Where a component's pods go: a dict of root, component and its values. */ -}}
{{- define "tidelog.placement" -}}
{{- with .values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .values.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- range . }}
  - {{ toYaml . | indent 4 | trim }}
    {{- if not .labelSelector }}
    labelSelector:
      matchLabels:
        {{- include "tidelog.selector" $ | nindent 8 }}
    {{- end }}
    {{- if not .matchLabelKeys }}
    matchLabelKeys: [{{ ternary "controller-revision-hash" "pod-template-hash" (eq $.component "broker" | and (eq $.root.Values.broker.workload "StatefulSet")) }}]
    {{- end }}
  {{- end }}
{{- end }}
{{- end -}}

{{- /* Leaves out the chart's version, so that a new chart restarts no pods. */ -}}
{{- define "tidelog.podMetadata" -}}
labels:
  {{- include "tidelog.selector" . | nindent 2 }}
  {{- with .root.Values.commonLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  {{- with .values.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with merge (dict) (.values.podAnnotations | default dict) .root.Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "tidelog.container" -}}
image: {{ include "tidelog.image" (dict "image" .Values.image "tag" .Chart.AppVersion) | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  {{- toYaml .Values.securityContext | nindent 2 }}
{{- end -}}

{{- /* Secrets that the metadata store asks for. */ -}}
{{- define "tidelog.etcdMounts" -}}
{{- if and .Values.etcd.username (not .Values.dev.enabled) }}
- {name: etcd-password, mountPath: /etc/tidelog/etcd, readOnly: true}
{{- end }}
{{- if .Values.etcd.tls.existingSecret }}
- {name: etcd-tls, mountPath: /etc/tidelog/etcd-tls, readOnly: true}
{{- end }}
{{- end -}}

{{- define "tidelog.etcdVolumes" -}}
{{- if and .Values.etcd.username (not .Values.dev.enabled) }}
- name: etcd-password
  secret:
    secretName: {{ .Values.etcd.existingSecret }}
    defaultMode: 0440
    items: [{key: {{ .Values.etcd.passwordKey | quote }}, path: password}]
{{- end }}
{{- with .Values.etcd.tls.existingSecret }}
- name: etcd-tls
  secret: {secretName: {{ . | quote }}, defaultMode: 0440}
{{- end }}
{{- end -}}

{{- /* Secrets of the listeners and of their clients. They are mounted whole, never by subPath, so that a new certificate appears. */ -}}
{{- define "tidelog.doorMounts" -}}
{{- if .Values.tls.enabled }}
- {name: tls, mountPath: /etc/tidelog/tls, readOnly: true}
{{- if .Values.tls.clientCaSecret }}
- {name: client-ca, mountPath: /etc/tidelog/client-ca, readOnly: true}
{{- end }}
{{- end }}
{{- if .Values.auth.enabled }}
- {name: admin-key, mountPath: /etc/tidelog/admin, readOnly: true}
{{- end }}
{{- end -}}

{{- define "tidelog.doorVolumes" -}}
{{- if .Values.tls.enabled }}
- name: tls
  secret: {secretName: {{ .Values.tls.existingSecret | quote }}, defaultMode: 0440}
{{- with .Values.tls.clientCaSecret }}
- name: client-ca
  secret: {secretName: {{ . | quote }}, defaultMode: 0440}
{{- end }}
{{- end }}
{{- if .Values.auth.enabled }}
- name: admin-key
  secret: {secretName: {{ .Values.auth.adminKeySecret | quote }}, defaultMode: 0440}
{{- end }}
{{- end -}}

{{- /* A probe of the HTTP listener: a dict of root, path and the probe's times. Brokers answer probes of every client, without certificate
       or key. */ -}}
{{- define "tidelog.probe" -}}
httpGet: {path: {{ .path }}, port: http, scheme: {{ ternary "HTTPS" "HTTP" .root.Values.tls.enabled }}}
{{ toYaml .times }}
{{- end -}}

{{- define "tidelog.brokerProbes" -}}
startupProbe:
  {{- include "tidelog.probe" (dict "root" . "path" "/startupz" "times" .Values.broker.probes.startup) | nindent 2 }}
readinessProbe:
  {{- include "tidelog.probe" (dict "root" . "path" "/readyz" "times" .Values.broker.probes.readiness) | nindent 2 }}
livenessProbe:
  {{- include "tidelog.probe" (dict "root" . "path" "/livez" "times" .Values.broker.probes.liveness) | nindent 2 }}
{{- end -}}
