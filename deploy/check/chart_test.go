//go:build chart

package check

import (
	"bufio"
	"fmt"
	"io"
	"log"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	chartutil "helm.sh/helm/v4/pkg/chart/common"
	valueutil "helm.sh/helm/v4/pkg/chart/common/util"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	apps "k8s.io/api/apps/v1"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	policy "k8s.io/api/policy/v1"
	"sigs.k8s.io/yaml"

	"github.com/stocached/stocached/server/config"
	"github.com/stocached/stocached/shm"
)

const chartDir = "../chart/stocached"

// rendered is what a chart gives, decoded strictly.
type rendered struct {
	sets     []apps.DaemonSet
	cleanups []apps.DaemonSet // hooks, each with a Job
	jobs     []batch.Job
	configs  []core.ConfigMap
	services []core.Service
	accounts []core.ServiceAccount
	budgets  []policy.PodDisruptionBudget
	monitors []monitoring.ServiceMonitor
	notes    string
}

// decode adds an object of Kubernetes. Unknown fields and kinds are errors.
func (r *rendered) decode(text string) error {
	var kind struct{ Kind string }
	if err := yaml.Unmarshal([]byte(text), &kind); err != nil {
		return err
	}
	sets := &r.sets
	if strings.Contains(text, "helm.sh/hook:") {
		sets = &r.cleanups
	}
	into := map[string]func() error{
		"DaemonSet":           func() error { return strict(text, sets) },
		"Job":                 func() error { return strict(text, &r.jobs) },
		"ConfigMap":           func() error { return strict(text, &r.configs) },
		"Service":             func() error { return strict(text, &r.services) },
		"ServiceAccount":      func() error { return strict(text, &r.accounts) },
		"PodDisruptionBudget": func() error { return strict(text, &r.budgets) },
		"ServiceMonitor":      func() error { return strict(text, &r.monitors) },
	}[kind.Kind]
	if into == nil {
		return fmt.Errorf("kind %q is not expected", kind.Kind)
	}
	return into()
}

// strict appends an object. Unknown and repeated fields are errors.
func strict[T any](text string, all *[]T) error {
	var one T
	if err := yaml.UnmarshalStrict([]byte(text), &one); err != nil {
		return fmt.Errorf("%w in\n%s", err, text)
	}
	*all = append(*all, one)
	return nil
}

// loadChart reads the chart once for all tests of a function.
func loadChart(t *testing.T) *chart.Chart {
	t.Helper()
	c, err := loader.LoadDir(chartDir)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// render renders the chart like `helm template`, with the schema of the values.
func render(c *chart.Chart, values string) (r rendered, err error) {
	v, err := chartutil.ReadValues([]byte(values))
	if err != nil {
		return r, err
	}
	release := chartutil.ReleaseOptions{Name: "training", Namespace: "jobs", Revision: 1, IsInstall: true}
	all, err := valueutil.ToRenderValues(c, v, release, chartutil.DefaultCapabilities)
	if err != nil {
		return r, err
	}
	log.SetOutput(io.Discard) // a template that fails by intent
	defer log.SetOutput(os.Stderr)
	files, err := engine.Render(c, all)
	if err != nil {
		return r, err
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		text := files[name]
		switch {
		case strings.HasSuffix(name, "NOTES.txt"):
			r.notes = text
		case strings.HasSuffix(name, ".yaml") && strings.TrimSpace(text) != "":
			for _, one := range strings.Split(text, "\n---\n") {
				if strings.TrimSpace(one) == "" {
					continue
				}
				if err := r.decode(one); err != nil {
					return r, fmt.Errorf("%s: %w", name, err)
				}
			}
		}
	}
	return r, nil
}

// valueFiles returns the texts of the files of values for checks, by their names.
func valueFiles(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob(chartDir + "/ci/*-values.yaml")
	if err != nil || len(files) < 3 {
		t.Fatal(files, err)
	}
	all := map[string]string{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all[strings.TrimSuffix(filepath.Base(file), "-values.yaml")] = string(text)
	}
	return all
}

// Ensure that helm's linter finds nothing, for the default values and for those of the checks.
func TestChartLint(t *testing.T) {
	all := valueFiles(t)
	all["default"] = ""
	for name, text := range all {
		values, err := chartutil.ReadValues([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range lint.RunAll(chartDir, values, "jobs").Messages {
			t.Errorf("%s: %v", name, m)
		}
	}
}

// Ensure that what the chart renders has only fields of Kubernetes, that its parts belong together,
// and that the server accepts its configuration.
func TestChartTemplates(t *testing.T) {
	c := loadChart(t)
	for name, text := range valueFiles(t) {
		t.Run(name, func(t *testing.T) {
			r, err := render(c, text)
			if err != nil {
				t.Fatal(err)
			}
			if len(r.sets) != 1 || len(r.configs) != 1 || !strings.Contains(r.notes, "STOCACHED_SOCKETS_DIR=/dev/shm/") {
				t.Fatalf("%d DaemonSets, %d ConfigMaps, notes\n%s", len(r.sets), len(r.configs), r.notes)
			}
			r.wantWhole(t)
			wantSafe(t, r.sets[0].Spec.Template.Spec)
			r.wantServed(t)
			if strings.Contains(text, "emptyDir") { // which ends with its pod
				if len(r.cleanups)+len(r.jobs) > 0 {
					t.Error("there is nothing to clean up")
				}
			} else {
				r.wantCleaned(t)
			}
		})
	}
}

// wantCleaned fails if a release leaves something on a node when it is uninstalled: a hook on all nodes, for which Helm
// waits, runs as the server does.
func (r *rendered) wantCleaned(t *testing.T) {
	t.Helper()
	if len(r.cleanups) != 1 || len(r.jobs) != 1 {
		t.Fatalf("%d hooks on all nodes, %d Jobs", len(r.cleanups), len(r.jobs))
	}
	server := r.sets[0].Spec.Template.Spec
	for _, pod := range []core.PodSpec{r.cleanups[0].Spec.Template.Spec, r.jobs[0].Spec.Template.Spec} {
		if pod.Containers[0].Image != server.Containers[0].Image || pod.HostIPC != server.HostIPC ||
			!reflect.DeepEqual(pod.SecurityContext, server.SecurityContext) ||
			!reflect.DeepEqual(pod.Tolerations, server.Tolerations) || !reflect.DeepEqual(pod.NodeSelector, server.NodeSelector) {
			t.Error("the hook does not run as the server does")
		}
	}
	const key = "app.kubernetes.io/name"
	if r.sets[0].Spec.Selector.MatchLabels[key] == r.cleanups[0].Spec.Template.Labels[key] {
		t.Error("the DaemonSet of the server selects pods of the hook")
	}
}

// Ensure that an upgrade removes the caches that left the values, and keeps the others warm, and that the hook of the
// uninstallation removes the rest and the sockets. Both run for real.
func TestChartUpgrade(t *testing.T) {
	c, dir, id := loadChart(t), t.TempDir(), fmt.Sprintf("chart-%d", os.Getpid())
	sockets, program := "/dev/shm/stocached."+id, filepath.Join(dir, "stocached")
	if out, err := exec.Command("go", "build", "-C", "../..", "-o", program, "./cmd/stocached").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if err := os.WriteFile(filepath.Join(dir, "data"), make([]byte, 1000), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(sockets) })
	install := func(names ...string) (r rendered, end func()) {
		t.Helper()
		values := fmt.Sprintf("socketsDir: %s\nmetrics: {enabled: false}\nconfig:\n  caches:\n", sockets)
		for _, name := range names {
			values += fmt.Sprintf("    - {name: %s, source: {kind: raw, path: %s/data, sample_bytes: 10}, size: 8MiB}\n", name, dir)
		}
		r, err := render(c, values)
		if err != nil {
			t.Fatal(err)
		}
		config := filepath.Join(dir, "config.yaml")
		if err := os.WriteFile(config, []byte(r.configs[0].Data["config.yaml"]), 0o600); err != nil {
			t.Fatal(err)
		}
		server := exec.Command(program, "serve", "-c", config)
		server.Env, server.Stderr = append(os.Environ(), "STOCACHED_SOCKETS_DIR="+sockets), os.Stderr
		out, err := server.StdoutPipe()
		if err == nil {
			err = server.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
			t.Fatal(line, err)
		}
		return r, func() { server.Process.Signal(syscall.SIGTERM); server.Wait() }
	}
	there := func(name string) string {
		info, err := os.Stat(filepath.Join(shm.DefaultDir(), name))
		if err != nil {
			return ""
		}
		return fmt.Sprint(info.Sys().(*syscall.Stat_t).Ino)
	}
	_, end := install(id+"-stays", id+"-leaves")
	end()
	first := there(id + "-stays")
	if first == "" || there(id+"-leaves") == "" {
		t.Fatal("a server that ends keeps its caches for the next one")
	}
	r, end := install(id + "-stays")
	if there(id+"-leaves") != "" || there(id+"-stays") != first {
		t.Error("the upgrade left a cache that its values do not name, or removed another one")
	}
	args := r.jobs[0].Spec.Template.Spec.Containers[0].Args
	args[slices.Index(args, "--for=45s")] = "--for=2s"
	hook := exec.Command(program, args...)
	if err := hook.Start(); err != nil {
		t.Fatal(err)
	}
	end() // Helm begins the hook while the pod of the server ends
	if err := hook.Wait(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(sockets); there(id+"-stays") != "" || !os.IsNotExist(err) {
		t.Error("the hook left something", err)
	}
}

// Ensure that the chart's defaults are those of the image: the user, the folder of the sockets, the
// arguments, and a version that goes with it.
func TestChartGoesWithImage(t *testing.T) {
	r, err := render(loadChart(t), valueFiles(t)["smallest"])
	if err != nil {
		t.Fatal(err)
	}
	i, pod := readImage(t), r.sets[0].Spec.Template.Spec
	if user := fmt.Sprintf("%d:%d", *pod.SecurityContext.RunAsUser, *pod.SecurityContext.RunAsGroup); user != i.user {
		t.Errorf("the pods run as %s, the image as %s", user, i.user)
	}
	for _, v := range pod.Containers[0].Env {
		if i.environ[v.Name] != v.Value {
			t.Errorf("%s is %s, in the image %s", v.Name, v.Value, i.environ[v.Name])
		}
	}
	if !slices.Equal(pod.Containers[0].Args, i.command[1:]) {
		t.Errorf("arguments %q, of the image %q", pod.Containers[0].Args, i.command)
	}
	if version := i.labels["org.opencontainers.image.version"]; !strings.HasSuffix(pod.Containers[0].Image, ":"+version) {
		t.Errorf("image %s, version %s", pod.Containers[0].Image, version)
	}
}

// wantWhole fails if a selector selects other pods, or a mount has no volume.
func (r *rendered) wantWhole(t *testing.T) {
	t.Helper()
	set := r.sets[0]
	labels := set.Spec.Template.Labels
	wantSelected := func(what string, selector map[string]string) {
		for key, value := range selector {
			if labels[key] != value {
				t.Errorf("%s selects %s=%s, and the pods have %v", what, key, value, labels)
			}
		}
		if len(selector) == 0 {
			t.Errorf("%s selects every pod", what)
		}
	}
	wantSelected("the DaemonSet", set.Spec.Selector.MatchLabels)
	pod := set.Spec.Template.Spec
	volumes := map[string]bool{}
	for _, v := range pod.Volumes {
		if volumes[v.Name] {
			t.Errorf("volume %s twice", v.Name)
		}
		volumes[v.Name] = true
	}
	ports, mounted := map[string]int32{}, map[string]bool{}
	for _, one := range pod.Containers {
		for _, m := range one.VolumeMounts {
			mounted[m.Name] = true
			if !volumes[m.Name] {
				t.Errorf("container %s mounts %s, which is no volume", one.Name, m.Name)
			}
		}
		for _, p := range one.Ports {
			ports[p.Name] = p.ContainerPort
		}
	}
	for name := range volumes {
		if !mounted[name] {
			t.Errorf("volume %s is mounted nowhere", name)
		}
	}
	for _, s := range r.services {
		wantSelected("the Service", s.Spec.Selector)
		for _, p := range s.Spec.Ports {
			if ports[p.TargetPort.StrVal] != p.Port {
				t.Errorf("port %+v of the Service, and the pods have %v", p, ports)
			}
		}
	}
	for _, b := range r.budgets {
		wantSelected("the PodDisruptionBudget", b.Spec.Selector.MatchLabels)
		if b.Spec.MinAvailable.StrVal != "" || b.Spec.MaxUnavailable != nil {
			t.Errorf("%+v: a DaemonSet supports minAvailable as a number only", b.Spec)
		}
	}
	for _, m := range r.monitors {
		if len(r.services) != 1 || m.Spec.Endpoints[0].Port != r.services[0].Spec.Ports[0].Name {
			t.Errorf("the ServiceMonitor asks port %s of %d Services", m.Spec.Endpoints[0].Port, len(r.services))
		}
		for key, value := range m.Spec.Selector.MatchLabels {
			if r.services[0].Labels[key] != value {
				t.Errorf("the ServiceMonitor selects %s=%s, and the Service has %v", key, value, r.services[0].Labels)
			}
		}
	}
	for _, a := range r.accounts {
		if a.Name != pod.ServiceAccountName {
			t.Errorf("service account %s, and the pods have %s", a.Name, pod.ServiceAccountName)
		}
	}
}

// wantSafe fails if a pod may be root, may write outside of its volumes, or has no probes.
func wantSafe(t *testing.T, pod core.PodSpec) {
	t.Helper()
	c, yes := pod.Containers[0], func(b *bool) bool { return b != nil && *b }
	if s := pod.SecurityContext; !yes(s.RunAsNonRoot) || s.RunAsUser == nil || *s.RunAsUser == 0 || s.FSGroup == nil {
		t.Errorf("the pod has %+v", s)
	}
	if s := c.SecurityContext; !yes(s.ReadOnlyRootFilesystem) || s.AllowPrivilegeEscalation == nil ||
		*s.AllowPrivilegeEscalation || !slices.Equal(s.Capabilities.Drop, []core.Capability{"ALL"}) {
		t.Errorf("the container has %+v", s)
	}
	for _, p := range []*core.Probe{c.StartupProbe, c.ReadinessProbe, c.LivenessProbe} {
		if p == nil || !slices.Equal(p.Exec.Command, []string{"/usr/local/bin/stocached", "health"}) {
			t.Errorf("probe %+v", p)
		}
	}
	if s := c.StartupProbe; s.PeriodSeconds*s.FailureThreshold < 900 {
		t.Errorf("the server has %d seconds to start", s.PeriodSeconds*s.FailureThreshold)
	}
	if pod.HostNetwork || pod.HostPID || yes(pod.AutomountServiceAccountToken) {
		t.Errorf("host network %v, host pids %v, token %v", pod.HostNetwork, pod.HostPID, pod.AutomountServiceAccountToken)
	}
}

// wantServed fails if the server refuses the rendered configuration, or the pod has less memory than
// it needs.
func (r *rendered) wantServed(t *testing.T) (bytes uint64) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(path, []byte(r.configs[0].Data["config.yaml"]), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := config.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	need := uint64(c.Limits.Clients)
	for _, one := range c.Caches {
		need += uint64(one.Size)
	}
	container := r.sets[0].Spec.Template.Spec.Containers[0]
	limit, request := container.Resources.Limits.Memory(), container.Resources.Requests.Memory()
	reserve := min(max(uint64(limit.Value())/16, 128<<20), 1<<30) // docs/guides/operations.md
	if uint64(limit.Value()) < need+reserve || request.Cmp(*limit) > 0 || request.IsZero() {
		t.Errorf("memory limit %v, request %v; caches and clients need %d and a reserve of %d", limit, request, need, reserve)
	}
	for _, v := range r.sets[0].Spec.Template.Spec.Volumes {
		if v.Name == "shared-memory" && v.EmptyDir != nil && (v.EmptyDir.Medium != core.StorageMediumMemory ||
			uint64(v.EmptyDir.SizeLimit.Value())*9/10 < need-uint64(c.Limits.Clients)) {
			t.Errorf("shared memory %+v", v.EmptyDir)
		}
	}
	return uint64(limit.Value())
}

// Ensure that wrong values are refused with a message that has the numbers, or the next step.
func TestChartRefuses(t *testing.T) {
	const cache = "config: {caches: [{name: a, size: 8GiB, source: {kind: dir, path: /data}}]}\n"
	c := loadChart(t)
	for _, wrong := range []struct{ values, message string }{
		{"", "config.caches: the server needs at least one cache"},
		{"config: {caches: [{name: a, source: {kind: dir, path: /data}}]}", "missing property 'size'"},
		{"config: {caches: [{name: a, size: all, source: {kind: dir, path: /data}}]}", "/config/caches/0/size"},
		{"config: {caches: [{name: a, size: 8Gi, source: {kind: dir, path: /data}}]}", "/config/caches/0/size"},
		{cache + "resources: {limits: {memory: 8Gi}}",
			`resources\.limits\.memory is 8Gi \(8589934592 bytes\), and the pod needs (\d+) bytes: 8589934592 for the caches, 805306368 for`},
		{cache + "resources: {limits: {memory: 16Gi}, requests: {memory: 1G}}", `resources\.requests\.memory is 1G \(1000000000 bytes\)`},
		{cache + "resources: {limits: {memory: 8GiB}}", "/resources/limits/memory"},
		{cache + "memory: 8Gi", "additional properties 'memory' not allowed"},
		{cache + "config2: {}", "additional properties 'config2' not allowed"},
		{"config: {sockets: {dir: /tmp}, caches: []}", "additional properties 'sockets' not allowed"},
		{cache + "sharedMemory: {kind: hostpath}", "/sharedMemory/kind"},
		{cache + "sharedMemory: {kind: emptyDir}", "which no other pod can share"},
		{cache + "podDisruptionBudget: {enabled: true, minAvailable: 50%}", "/podDisruptionBudget/minAvailable"},
		{cache + "metrics: {enabled: false, serviceMonitor: {enabled: true}}", "without it, no metrics are on TCP"},
		{"config: {caches: [{name: a, size: 8GiB, source: {kind: dir}, tiers: [{kind: cluster, password: x}]}]}",
			"would stand in a ConfigMap"},
		{"config: {caches: [{name: a, size: 8GiB, source: {kind: dir}, tiers: [{kind: disk, dir: /nvme/a, size: 1TiB}]}]}\n" +
			"extraVolumeMounts: [{name: a, mountPath: /nvm}, {name: b, mountPath: /nvme, readOnly: true}]",
			`cache a has a tier disk in "/nvme/a", where no volume is mounted`},
	} {
		_, err := render(c, wrong.values)
		if err == nil {
			t.Errorf("no error for\n%s", wrong.values)
		} else if found, _ := regexp.MatchString(wrong.message, err.Error()); !found {
			t.Errorf("%s\n%v\nwant %s", wrong.values, err, wrong.message)
		}
	}
}

// Ensure that the memory limit follows the caches and the buffers of the server, and that limits
// that are just enough are accepted.
func TestChartMemory(t *testing.T) {
	c := loadChart(t)
	limit := func(values string) uint64 {
		r, err := render(c, values)
		if err != nil {
			t.Fatalf("%v\n%s", err, values)
		}
		return r.wantServed(t)
	}
	const source = "source: {kind: dir, path: /data}"
	base := limit("config: {caches: [{name: a, size: 64GiB, " + source + "}]}")
	for values, more := range map[string]uint64{
		"config: {caches: [{name: a, size: 80GiB, " + source + "}]}":                                                                                      16 << 30,
		"config: {caches: [{name: a, size: 68719476736, " + source + "}]}":                                                                                0,
		"config: {caches: [{name: a, size: 64GiB, " + source + "}, {name: b, size: 1.5GiB, " + source + "}]}":                                             3 << 29,
		"config: {limits: {clients: 1GiB}, caches: [{name: a, size: 64GiB, " + source + "}]}":                                                             512 << 20,
		"processMemory: 1280MiB\nconfig: {caches: [{name: a, size: 64GiB, " + source + "}]}":                                                              1 << 30,
		"valkey: {enabled: true}\nconfig: {caches: [{name: a, size: 64GiB, " + source + "}]}":                                                             64 << 20,
		"config: {caches: [{name: a, size: 64GiB, source: {kind: dir, path: /data, read_ahead: {size: 256MiB}}}]}":                                        256 << 20,
		"valkey: {enabled: true}\nconfig: {caches: [{name: a, size: 64GiB, source: {kind: dir, path: /data, read_ahead: {size: 256MiB, blocks: true}}}]}": 320 << 20,
		"config: {caches: [{name: a, size: 64GiB, source: {kind: dir, path: /data, read_ahead: {readers: 2}}}]}":                                          64 << 20,
		fmt.Sprintf("resources: {limits: {memory: %d}}\nconfig: {caches: [{name: a, size: 64GiB, %s}]}", base, source):                                    0,
	} {
		if got := limit(values); got != base+more {
			t.Errorf("%d bytes, want %d + %d for\n%s", got, base, more, values)
		}
	}
}

// Ensure that the chart connects each cache to Valkey by the name of its Service, and passes no
// password through the ConfigMap.
func TestChartValkey(t *testing.T) {
	r, err := render(loadChart(t), valueFiles(t)["all"])
	if err != nil {
		t.Fatal(err)
	}
	var c struct {
		Caches []struct {
			Name  string
			Tiers []map[string]any
		}
	}
	if err := yaml.Unmarshal([]byte(r.configs[0].Data["config.yaml"]), &c); err != nil {
		t.Fatal(err)
	}
	want := "map[addresses:[valkey-cluster.storage.svc:6379] expire:72h kind:cluster memory:128MiB " +
		"password_file:/run/secrets/stocached-valkey/password tls:map[ca:/run/secrets/stocached-valkey-ca/ca.crt server_name:valkey] " +
		"user:stocached]"
	if got := fmt.Sprint(c.Caches[0].Tiers[0]); got != want || len(c.Caches[0].Tiers) != 1 {
		t.Errorf("tier %s\nwant %s", got, want)
	}
	if len(c.Caches[1].Tiers) != 0 {
		t.Errorf("cache %s has read_ahead, and tiers %v", c.Caches[1].Name, c.Caches[1].Tiers)
	}
	if !strings.Contains(r.notes, "Cache texts has no cluster tier: its read_ahead is without") || strings.Contains(r.notes, "Cache pictures") {
		t.Errorf("notes %s", r.notes)
	}
	files := map[string]bool{}
	for _, v := range r.sets[0].Spec.Template.Spec.Volumes {
		if v.Secret != nil {
			for _, item := range v.Secret.Items {
				files[v.Secret.SecretName+"/"+item.Key+">"+item.Path] = true
			}
		}
	}
	if !files["valkey/valkey-password>password"] {
		t.Errorf("the pods mount %v", files)
	}
}

// Ensure that the manifests and values in the guide are good, and that it tells the numbers of the
// chart.
func TestGuide(t *testing.T) {
	text, err := os.ReadFile(top + "/docs/guides/kubernetes.md")
	if err != nil {
		t.Fatal(err)
	}
	c, i := loadChart(t), readImage(t)
	var pods []core.Pod
	values := 0
	for _, block := range regexp.MustCompile("(?s)```yaml by \\S+\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		if strings.HasPrefix(block[1], "# values.yaml") {
			values++
			if r, err := render(c, block[1]); err != nil {
				t.Errorf("%v\n%s", err, block[1])
			} else {
				r.wantWhole(t)
				r.wantServed(t)
			}
		} else if err := strict(block[1], &pods); err != nil {
			t.Error(err)
		}
	}
	if values < 2 || len(pods) != 1 {
		t.Fatalf("%d files of values, %d pods", values, len(pods))
	}
	sockets := core.EnvVar{Name: "STOCACHED_SOCKETS_DIR", Value: i.environ["STOCACHED_SOCKETS_DIR"]}
	if one := pods[0].Spec.Containers[0]; !slices.Contains(one.Env, sockets) ||
		one.Env[1].ValueFrom.FieldRef.FieldPath != "spec.nodeName" || one.VolumeMounts[0].MountPath != "/dev/shm" {
		t.Errorf("%+v", one)
	}
	_, err = render(c, "resources: {limits: {memory: 8Gi}}\n"+
		"config: {caches: [{name: a, size: 8GiB, source: {kind: dir, path: /data}}]}")
	said := regexp.MustCompile(`(?s)resources\.limits\.memory is .*?smaller`).FindString(string(text))
	if said = strings.Join(strings.Fields(said), " "); err == nil || said == "" || !strings.Contains(err.Error(), said) {
		t.Errorf("the guide says\n%s\nand the chart\n%v", said, err)
	}
}
