// Settings of a run from the arguments that Megatron-LM stores in its checkpoints, and arguments from settings.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "config/config.h"
#include "mcore/contents.h"
#include "pickle/value_writer.h"

namespace metroplex::mcore {

struct Progress {
  int64_t iteration = 0, consumed_samples = 0;
  bool has_optimizer = false;  // the checkpoint has the optimizer's state
};

// Converts Megatron's args to keys of section model, with the flags of megatron/flags.h, and adds
// precision.params_dtype and train.seq_length. model.vocab_size is the number of rows of the stored embedding:
// Megatron's softmax includes its padding.
// Without args, returns only the keys that the tensors determine, and throws base::Error unless `given` is true for
// those that a model needs.
std::vector<std::string> read_settings(const Contents& contents, const std::string& directory,
                                       const std::function<bool(const std::string& key)>& given = {});
// Returns args.consumed_train_samples.
int64_t consumed_samples(const Contents& contents);

// The inverse: writes args of a resolved configuration, as an argparse.Namespace. Keys of section model without a
// flag are left out.
void write_arguments(const config::Config& config, const Progress& progress, pickle::ValueWriter& writer);

// Internal to this module.

// The attribute of args that a flag sets. `given_for`: its value if a flag without a value is given, "True" or
// "False".
struct Attribute {
  std::string name, given_for;
};
Attribute find_attribute(const std::string& flag);
// Whether a flag takes a number or one 0 or 1 per layer, which args store as a list.
bool is_layer_list(const std::string& flag);
// Whether a flag changes how a model is trained or initialized, not what it is.
bool is_left_out(const std::string& flag);

}  // namespace metroplex::mcore
