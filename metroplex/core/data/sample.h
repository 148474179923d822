// A training sample and the dataset interface. A sample is plain host data with `sequence_length` elements in every
// vector; step/ stacks samples into tensors.
#pragma once

#include <cstdint>
#include <vector>

namespace metroplex::data {

struct Sample {
  std::vector<int64_t> tokens, labels, position_ids;
  std::vector<float> loss_mask;
  // With reset_attention_mask: the document index of each position within the sample, from 0. A position attends only
  // to earlier positions of its own document. Empty if the option is off.
  std::vector<int32_t> document_ids;
  int64_t index = 0;  // the requested index; -1: a filler sample with zero loss mask
};

class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual int64_t size() const = 0;
  // Fills `out` and reuses its memory. Thread-safe. index in [0, size()), or -1 for a filler.
  virtual void get(int64_t index, Sample& out) const = 0;
};

}  // namespace metroplex::data
