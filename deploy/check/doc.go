// Package check tests the files of deploy/. Alerts and dashboard use metrics that a server has. The root
// file system of the image runs. Kubernetes, Docker and the server accept the chart and the Compose file.
// No test needs a network, a cluster or a container engine.
package check
