{{- define "affinode.name" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "affinode.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "affinode.labels" -}}
{{ include "affinode.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{/* The settings file. JSON is written as a text for Python, so that no value can be code. */}}
{{- define "affinode.config" -}}
import json

c = get_config()  # noqa
for name, value in json.loads({{ .Values.settings | toJson | quote }}).items():
    setattr(c.NodeController, name, value)
{{- end -}}
