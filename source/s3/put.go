package s3

import (
	"bytes"
	"context"
	"crypto/md5" // S3 compares it with the bytes that came
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"

	"github.com/minio/minio-go/v7"
)

// Put is part of remote.PutDriver. A signature needs the SHA-256 of the bytes. With it and
// DisableContentSha256 the body is the bytes themselves; minio-go would send them in signed chunks,
// which some servers take for the bytes.
func (d *driver) Put(ctx context.Context, name string, data []byte) error {
	bucket, key, err := split(name)
	if err != nil {
		return err
	}
	check, signed := md5.Sum(data), sha256.Sum256(data)
	_, err = d.core.PutObject(ctx, bucket, key, bytes.NewReader(data), int64(len(data)),
		base64.StdEncoding.EncodeToString(check[:]), hex.EncodeToString(signed[:]), minio.PutObjectOptions{DisableContentSha256: true})
	if err != nil {
		return d.failed(name, err)
	}
	return nil
}
