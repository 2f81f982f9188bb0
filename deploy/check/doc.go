// Package check holds only tests of what is in deploy/: the alerts and the dashboard use metrics that
// a server has, the root file system of the image runs, and the chart and the Compose file are what
// Kubernetes, Docker and the server accept. No test needs a network, a cluster or a container engine.
package check
