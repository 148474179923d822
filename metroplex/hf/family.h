// The model families of Hugging Face's transformers that a directory may hold. A family is a file of families/ and a
// line of the table in family.cpp: what its config.json says in our keys, which of its tensors ours are made of, and
// back. Names and layouts are those of transformers 5 (config.json of version 4 is read too).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "config/config.h"

namespace metroplex::hf {

using Json = nlohmann::json;
using Dims = std::vector<int64_t>;

// A box of one of our tensors that lies in one of theirs: element i of the box (i from 0 in every dim) is element
// base + sum_d strides[d] i[d] of theirs.
struct TensorPart {
  std::string name;  // theirs
  Dims shape;        // of the whole of theirs
  Dims offset, size;
  int64_t base = 0;
  Dims strides;
  bool copy = false;  // of numbers that another part has: it is written, and need not be there
};
// Calls row(theirs) for each row (all but the last dim) of the box [offset, offset + size) of ours, in order: the
// element of theirs where it begins. The box lies in that of the part; the last stride is between its elements.
template <class Row>
void for_each_row(const TensorPart& part, const Dims& offset, const Dims& size, const Row& row);

struct MappedTensor {
  std::string name;  // ours
  Dims shape;        // unsharded, vocabulary unpadded
  std::vector<TensorPart> parts;
  std::string kind = "weight";  // or "buffer", which has no gradient
};

struct Family {
  const char* model_type;    // of config.json
  const char* architecture;  // likewise
  // "model.num_layers=3". Throws base::Error("hf") naming the key of config.json that means a model which is not
  // built here.
  std::vector<std::string> (*settings)(const Json& config);
  // In the order of the model. Of a resolved config.
  std::vector<MappedTensor> (*tensors)(const config::Model& model);
  // Whether a model of ours is one of this family.
  bool (*holds)(const config::Model& model);
  Json (*config)(const config::Model& model);  // what settings() reads, of a model that it holds
  bool multi_token = false;  // its directories may hold layers of multi-token prediction, num_nextn_predict_layers
};

// Throws base::Error("hf") with the families that are known.
const Family& family_of(const std::string& model_type);
// The family that a model can be written as. Throws base::Error("hf").
const Family& family_for(const config::Model& model);
std::vector<std::string> family_names();

template <class Row>
void for_each_row(const TensorPart& part, const Dims& offset, const Dims& size, const Row& row) {
  const size_t last = size.size() - 1;
  Dims at(size.size(), 0);
  for (bool more = true; more;) {
    int64_t theirs = part.base;
    for (size_t d = 0; d < size.size(); ++d) theirs += part.strides[d] * (offset[d] + at[d] - part.offset[d]);
    row(theirs);
    more = false;
    for (size_t d = last; d-- > 0 && !more;) {
      more = ++at[d] < size[d];
      if (!more) at[d] = 0;
    }
  }
}

}  // namespace metroplex::hf
