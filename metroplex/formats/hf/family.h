// The model families of Hugging Face's transformers. A family is a file in families/ and a line of the table in
// family.cpp. It maps config.json to our keys and our tensors to theirs, in both directions. Names and layouts are
// those of transformers 5; config.json of version 4 is also accepted.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "config/config.h"
#include "hf/config_reader.h"

namespace metroplex::hf {

using Dims = std::vector<int64_t>;
using Settings = std::vector<std::string>;

// A region of one of our tensors that is stored in one of theirs. Element i of the region (i from 0 in every dim) is
// element base + sum_d strides[d] i[d] of theirs.
struct TensorPart {
  std::string name;  // theirs
  Dims shape;        // whole shape of theirs
  Dims offset, size;
  int64_t base = 0;
  Dims strides;
  bool copy = false;  // duplicates another part: written, but optional when read
};
// Calls row(theirs) for each row (all but the last dim) of the region [offset, offset + size) of ours, in order.
// `theirs` is the index of the row's first element. The region must be inside that of `part`; the row's elements are
// strides.back() apart.
template <class Row>
void for_each_row(const TensorPart& part, const Dims& offset, const Dims& size, const Row& row);

struct MappedTensor {
  std::string name;  // ours
  Dims shape;        // unsharded, vocabulary unpadded
  std::vector<TensorPart> parts;
  std::string kind = "weight";  // or "buffer", which has no gradient
};

// A tensor of a directory that the model does not have, because config.json determines its values, in [0, 1]. Exports
// contain it. In imports it may be missing, and is compared.
struct Constant {
  std::string name;
  Dims shape;
  std::function<std::vector<float>()> values;
};

struct Family {
  const char* model_type;  // as in config.json
  const char* architecture;
  // Returns assignments such as "model.num_layers=3". Throws base::Error("hf") with the name of an unsupported key of
  // config.json.
  Settings (*settings)(ConfigReader& config);
  // Returns the mapping in the order of the model. `model` must be resolved.
  std::vector<MappedTensor> (*tensors)(const config::Model& model);
  // The inverse of settings() for models that the family can represent, and any config.json for others.
  Json (*config)(const config::Model& model);
  const char* written_as = nullptr;  // model_type of exports, if it is another one
  bool multi_token = false;          // directories may have multi-token prediction layers (num_nextn_predict_layers)
  // Null: there are no constants.
  std::vector<Constant> (*constants)(const config::Model& model) = nullptr;
};

// Returns the settings of a config.json. Throws base::Error("hf") for a key that the family does not read.
Settings read_config(const Family& family, const Json& config);
// Whether the config.json that the family writes for the model means the same model. Multi-token prediction layers
// are not compared.
bool represents(const Family& family, const config::Model& model);
// Throws base::Error("hf") with a list of the supported families.
const Family& find_family(const std::string& model_type);
// Returns the family that a model can be written as. Throws base::Error("hf") if there is none.
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
