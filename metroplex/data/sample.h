// One training sample and the thing that hands them out. A sample is plain host data, `sequence_length` long in every
// vector; train/ stacks samples into tensors.
#pragma once

#include <cstdint>
#include <vector>

namespace metroplex::data {

struct Sample {
  std::vector<int64_t> tokens, labels, position_ids;
  std::vector<float> loss_mask;
  // With reset_attention_mask: the number of the document that each position belongs to, counted from 0 inside the
  // sample; a position attends only to earlier positions of its own document. Empty when the option is off.
  std::vector<int32_t> document_ids;
  int64_t index = 0;  // what was asked for; -1 marks a filler sample whose loss mask is all zero
};

class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual int64_t size() const = 0;
  // Fills `out` (its memory is reused). Called from several threads at once. index in [0, size()), or -1 for a
  // filler.
  virtual void get(int64_t index, Sample& out) const = 0;
};

}  // namespace metroplex::data
