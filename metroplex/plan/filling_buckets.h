// Counts how full the gradient buckets are. With ZeRO-2 and 3 a bucket is allocated with the first gradient that goes
// into it; when all of its parameters have the gradients of one microbatch, it leaves: it is reduced and freed, one
// bucket at a time. Which buckets exist follows from the order of the gradients alone, so the gradient buffer and the
// memory replay both ask here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace metroplex::plan {

class FillingBuckets {
 public:
  // `params`: the parameters of each bucket, as indices. `uses`: of each parameter, its gradients per microbatch.
  // `overlap`: a leaving bucket exists until the next one leaves; else it is freed at once.
  FillingBuckets(std::vector<std::vector<size_t>> params, std::vector<int64_t> uses, bool overlap);

  // A step begins: all buckets are empty. One is full when it has the gradients of `num_microbatches` microbatches.
  void begin(int64_t num_microbatches = 1);
  // A gradient of `param` is about to be added. Returns its bucket if that has to be allocated now.
  std::optional<size_t> open(size_t param);
  // A gradient of `param` has been added. Returns its bucket if that is now full: it leaves, the one that left before
  // is freed, and it is empty again.
  std::optional<size_t> use(size_t param);
  // Makes a bucket leave that is not full.
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
  std::vector<size_t> waiting_;   // by bucket: parameters that still miss gradients
  std::vector<int64_t> missing_;  // by parameter: gradients; below zero while its bucket waits for other parameters
  std::optional<size_t> leaving_;
};

}  // namespace metroplex::plan
