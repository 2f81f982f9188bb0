// Package tar reads the samples of tar shards in the format of webdataset: the members 000123.jpg
// and 000123.cls are one sample with the fields jpg and cls.
//
// # Samples
//
// A member's key is its folder and its base name up to the first dot. The rest after that dot, in
// lower case, is the name of its field: train/000123.seg.png is the field seg.png of train/000123.
// Consecutive members of one key in a shard are one sample, as in webdataset. So a shard must keep
// them together: a key that comes again later is another sample with the same key. The same field
// twice in one sample is an error. Samples are numbered in the order of the shards, and in the
// order of members within a shard.
//
// These members are no part of a sample, and Info.Notes counts them: members without a dot in the
// base name, members whose base name begins with a dot (webdataset gives such a sample the name of
// the folder), and webdataset's own __name__ members. Folders are skipped. Links hold no data: they
// are skipped, as in webdataset, and counted. Errors are a sparse file, a member of 4 GiB or more,
// and a shard that ends in the middle or without the end mark of an archive, which is a zero block before
// another one or the end of the file. So is a global PAX header that sets names or sizes. Data after the mark is
// ignored, and Info.Notes says so unless it is zeros.
//
// Each field is bytes of one dimension. A sample of a single field is only its bytes. Fields in the
// setting int64 hold a decimal number as text, as webdataset writes .cls, and read as one int64.
// All samples must have all fields, unless the setting missing is "skip".
//
// # The index
//
// The source reads the headers of each shard once and skips the data. It keeps the places of the
// members in an index file for each shard; index.go has its format. An index may also lie beside a
// shard in a bucket or on a web server. An index is valid while the shard's size and modification
// time (of an object: its ETag) are the same and the checksum is correct; else it is made again.
// Several processes may do so at the same time.
package tar
