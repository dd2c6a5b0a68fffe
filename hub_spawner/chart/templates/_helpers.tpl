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

{{/* What answers on the controller's socket; ends with status 0 if anything does. */}}
{{- define "affinode.probe" -}}
- python3
- -IS
- -c
- |
  import socket
  asked = socket.socket(socket.AF_UNIX)
  asked.settimeout(5)
  asked.connect({{ printf "%s/node.sock" .Values.hostPaths.socket | toJson }})
  asked.sendall(b"GET /api/v1/node HTTP/1.0\r\n\r\n")
  raise SystemExit(not asked.recv(1))
{{- end -}}

{{/* Values that are valid each and wrong together. */}}
{{- define "affinode.check" -}}
{{- if and .Values.grants.required (not .Values.grants.publicKeys) -}}
{{- fail "grants.required is true, but grants.publicKeys is empty: no process could show a grant that the controller can verify. Make keys with `jupyter affinode grant keys FOLDER hub-1` and add --set-file 'grants.publicKeys.hub-1\\.pem=FOLDER/hub-1.pem'. Only where all users of a node may see and park each other's kernels, set grants.required=false." -}}
{{- end -}}
{{- if and .Values.metrics.podMonitor.enabled (not .Values.metrics.enabled) -}}
{{- fail "metrics.podMonitor.enabled is true, but metrics.enabled is false: there would be nothing to scrape. Set metrics.enabled=true." -}}
{{- end -}}
{{- if and (or .Values.dra.enabled (eq .Values.gpu.access "claim")) (not (.Capabilities.APIVersions.Has "resource.k8s.io/v1")) -}}
{{- fail (printf "dra.enabled and gpu.access=claim need the API resource.k8s.io/v1, which came with Kubernetes 1.34; this cluster is %s. Set dra.enabled=false and gpu.access=runtime, or for `helm template` add --api-versions resource.k8s.io/v1." .Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- end -}}
