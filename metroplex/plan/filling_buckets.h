// How full the gradient buckets are. One that exists only for a while (ZeRO-2 and 3) does so from the first gradient
// that goes into it until all of its parameters have had a microbatch's worth; then it leaves, one at a time: it is
// reduced and gone. Which exist when follows from the order of the gradients alone. The gradient buffer asks here,
// and so does the memory replay.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace metroplex::plan {

class FillingBuckets {
 public:
  // `params`: of each bucket, indices. `uses`: of each parameter, how many gradients a microbatch brings it.
  // `overlap`: a bucket that leaves is there until the next one does; else it is gone at once.
  FillingBuckets(std::vector<std::vector<size_t>> params, std::vector<int64_t> uses, bool overlap);

  // A step begins: all are empty. A bucket is full with the gradients of so many microbatches.
  void begin(int64_t num_microbatches = 1);
  // A gradient of `param` is about to be added. Its bucket, if it is the first one there.
  std::optional<size_t> open(size_t param);
  // One has been added. Its bucket, if that is full now: it leaves, the one that left before is gone, and it is empty
  // again.
  std::optional<size_t> use(size_t param);
  // The same for a bucket that is not full.
  void leave(size_t bucket);

  bool filling(size_t bucket) const { return filling_[bucket]; }
  std::optional<size_t> leaving() const { return leaving_; }

 private:
  void rearm(size_t bucket);

  std::vector<std::vector<size_t>> params_;
  std::vector<size_t> bucket_of_;
  std::vector<int64_t> uses_;
  int64_t num_microbatches_ = 1;
  bool overlap_;
  std::vector<bool> filling_;
  std::vector<size_t> waiting_;   // by bucket, parameters that still miss uses
  std::vector<int64_t> missing_;  // by parameter; below zero: its bucket waits for others
  std::optional<size_t> leaving_;
};

}  // namespace metroplex::plan
