package s3

import (
	"bytes"
	"context"
	"crypto/md5" // S3 names the state of a part by it
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/stocached/stocached/source/remote"

	"github.com/minio/minio-go/v7"
)

// mostListed is how many uploads or parts one answer lists.
const mostListed = 1000

// Begin is part of remote.PartDriver.
func (d *driver) Begin(ctx context.Context, name string, goOn bool) (upload string, parts map[int]remote.Part, err error) {
	_, bucket, key, err := split(name)
	if err != nil {
		return "", nil, err
	}
	var newest minio.ObjectMultipartInfo
	for marker, next := "", ""; ; {
		all, err := d.core.ListMultipartUploads(ctx, bucket, key, marker, next, "", mostListed)
		if minio.ToErrorResponse(err).Code == "NoSuchUpload" {
			break // a server's way to say that the bucket has none
		}
		if err != nil {
			return "", nil, d.failed(name, err)
		}
		for _, one := range all.Uploads {
			switch {
			case one.Key != key: // an object whose name begins with this one
			case !goOn:
				if err := d.core.AbortMultipartUpload(ctx, bucket, key, one.UploadID); err != nil {
					return "", nil, d.failed(name, err)
				}
			case newest.UploadID == "" || one.Initiated.After(newest.Initiated):
				newest = one
			}
		}
		if marker, next = all.NextKeyMarker, all.NextUploadIDMarker; !all.IsTruncated {
			break
		}
	}
	if newest.UploadID == "" {
		upload, err = d.core.NewMultipartUpload(ctx, bucket, key, minio.PutObjectOptions{})
		if err != nil {
			err = d.failed(name, err)
		}
		return upload, nil, err
	}
	parts = map[int]remote.Part{}
	for marker := 0; ; {
		all, err := d.core.ListObjectParts(ctx, bucket, key, newest.UploadID, marker, mostListed)
		if err != nil {
			return "", nil, d.failed(name, err)
		}
		for _, p := range all.ObjectParts {
			parts[p.PartNumber] = remote.Part{Bytes: p.Size, Tag: strings.Trim(p.ETag, `"`)}
		}
		if marker = all.NextPartNumberMarker; !all.IsTruncated {
			return newest.UploadID, parts, nil
		}
	}
}

// Part is part of remote.PartDriver.
func (d *driver) Part(ctx context.Context, name, upload string, number int, data []byte, sum [md5.Size]byte) (string, error) {
	_, bucket, key, err := split(name)
	if err != nil {
		return "", err
	}
	p, err := d.core.PutObjectPart(ctx, bucket, key, upload, number, bytes.NewReader(data), int64(len(data)),
		minio.PutObjectPartOptions{Md5Base64: base64.StdEncoding.EncodeToString(sum[:]), Sha256Hex: hash(data),
			DisableContentSha256: true})
	if err != nil {
		return "", d.failed(name, err)
	}
	return strings.Trim(p.ETag, `"`), nil
}

// Complete is part of remote.PartDriver.
func (d *driver) Complete(ctx context.Context, name, upload string, tags []string, only bool) error {
	_, bucket, key, err := split(name)
	if err != nil {
		return err
	}
	parts := make([]minio.CompletePart, len(tags))
	for k, tag := range tags {
		parts[k] = minio.CompletePart{PartNumber: k + 1, ETag: tag}
	}
	_, err = d.core.CompleteMultipartUpload(ctx, bucket, key, upload, parts, putOptions(only))
	return d.written(name, err, only)
}

// Put is part of remote.PartDriver.
func (d *driver) Put(ctx context.Context, name string, data []byte, sum [md5.Size]byte, only bool) error {
	_, bucket, key, err := split(name)
	if err != nil {
		return err
	}
	_, err = d.core.PutObject(ctx, bucket, key, bytes.NewReader(data), int64(len(data)),
		base64.StdEncoding.EncodeToString(sum[:]), hash(data), putOptions(only))
	return d.written(name, err, only)
}

// hash returns the SHA-256 that a signature of a request with these bytes needs. With it and
// DisableContentSha256 the body is the bytes themselves; minio-go would send them in signed chunks, which
// some servers take for the bytes.
func hash(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

func putOptions(only bool) (o minio.PutObjectOptions) {
	o.DisableContentSha256 = true
	if only {
		o.SetMatchETagExcept("*")
	}
	return o
}

// written returns the error of a request that writes an object.
func (d *driver) written(name string, err error, only bool) error {
	switch {
	case err == nil:
		return nil
	case only && minio.ToErrorResponse(err).StatusCode == 412:
		return fmt.Errorf("%s: %w", name, fs.ErrExist)
	}
	return d.failed(name, err)
}

// Remove is part of remote.PartDriver.
func (d *driver) Remove(ctx context.Context, name string) error {
	_, bucket, key, err := split(name)
	if err != nil {
		return err
	}
	if err := d.core.RemoveObject(ctx, bucket, key, minio.RemoveObjectOptions{}); err != nil {
		if err = d.failed(name, err); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
