// Package cloud reads and writes objects of Google Cloud Storage and Azure Blob Storage by their own
// protocols: gcs://bucket/name and azblob://container/name. It uses gocloud.dev/blob, which is large, so it
// is part of a program only with the build tag cloud. With the tag, package kinds imports it.
package cloud
