package s3

import (
	"context"
	"strings"

	"github.com/stocached/stocached/source/remote"
)

// List is part of remote.Driver.
func (d *driver) List(ctx context.Context, prefix, from string, alive func()) (page remote.Page, err error) {
	bucket, key, err := split(prefix)
	if err != nil {
		return page, err
	}
	client, err := d.client(within{documents{d.transport}, ctx, alive}) // the call for a page takes no context
	if err != nil {
		return page, d.failed(prefix, err)
	}
	list, err := client.ListObjectsV2(bucket, key, "", from, "", 0)
	if err != nil {
		return page, d.failed(prefix, err)
	}
	root := strings.TrimSuffix(prefix, key)
	for k := range list.Contents {
		o := &list.Contents[k]
		o.ETag = strings.Trim(o.ETag, `"`)
		page.Objects = append(page.Objects, remote.Object{Name: root + o.Key, Bytes: o.Size, Tag: tagOf(o)})
	}
	// Some servers leave IsTruncated out, and some end a list with the token that they were given.
	if list.IsTruncated || list.NextContinuationToken != from {
		page.Next = list.NextContinuationToken
	}
	return page, nil
}
