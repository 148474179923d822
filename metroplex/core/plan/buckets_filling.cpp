#include "plan/buckets.h"

#include <utility>

namespace metroplex::plan {

FillingBuckets::FillingBuckets(std::vector<std::vector<size_t>> params, std::vector<int64_t> uses, bool overlap)
    : params_(std::move(params)),
      bucket_of_(uses.size()),
      uses_(std::move(uses)),
      overlap_(overlap),
      waiting_(params_.size()),
      missing_(uses_.size()) {
  for (size_t b = 0; b < params_.size(); ++b) {
    for (const size_t param : params_[b]) bucket_of_[param] = b;
  }
  begin();
}

void FillingBuckets::begin(int64_t num_microbatches) {
  num_microbatches_ = num_microbatches;
  filling_.assign(params_.size(), false);
  leaving_.reset();
  for (size_t b = 0; b < params_.size(); ++b) rearm(b);
}

void FillingBuckets::rearm(size_t bucket) {
  waiting_[bucket] = params_[bucket].size();
  for (const size_t param : params_[bucket]) missing_[param] = uses_[param] * num_microbatches_;
}

std::optional<size_t> FillingBuckets::open(size_t param) {
  const size_t bucket = bucket_of_[param];
  if (filling_[bucket]) return std::nullopt;
  filling_[bucket] = true;
  return bucket;
}

std::optional<size_t> FillingBuckets::use(size_t param) {
  const size_t bucket = bucket_of_[param];
  if (--missing_[param] != 0 || --waiting_[bucket] != 0) return std::nullopt;
  leave(bucket);
  return bucket;
}

void FillingBuckets::leave(size_t bucket) {
  filling_[bucket] = false;
  leaving_ = overlap_ ? std::optional(bucket) : std::nullopt;
  rearm(bucket);
}

}  // namespace metroplex::plan
