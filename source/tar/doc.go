// Package tar reads the samples of tar shards as webdataset makes them: the members 000123.jpg and 000123.cls are one sample with the fields jpg and cls.
//
// # Samples
//
// A member's key is its folder and its base name up to the first dot; what follows that dot, in lower case, is the name of its field: train/000123.seg.png is the
// field seg.png of train/000123. Members of one key that follow each other in a shard are one sample, as in webdataset. So a shard must hold them side by side, and a key that
// comes back later is another sample of the same key. The same field twice in one sample is an error. Samples are numbered in the order of the shards, and in each in the order of
// its members.
//
// No part of a sample, and counted in Info.Notes: members without a dot in the base name, those whose base name begins with one (webdataset makes a sample named as
// the folder of the latter), and webdataset's own __name__ members. Folders are skipped. Links hold no data: they are skipped as in webdataset, and counted. A sparse
// file is refused by its name, and so is a member of 4 GiB or more. A shard that ends in the middle, or without an archive's end mark, is refused as well; what lies behind the
// mark is ignored, and told in Info.Notes where it is not zeros.
//
// Each field is bytes of one dimension; a sample of a single field is just its bytes. Fields named by the setting int64 hold a decimal number as text, as webdataset
// writes .cls, and read as one int64. All samples must have all fields, unless the setting missing is "skip".
//
// # The index
//
// Shards are walked once, their data skipped. Where the members lie is kept in a file for each shard, see index.go for its format, and is believed as long as the
// shard's size and modification time are the same and its checksum holds; else it is made again. Many processes may do so at once.
package tar
