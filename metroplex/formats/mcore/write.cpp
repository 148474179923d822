#include "mcore/write.h"

#include <algorithm>
#include <map>
#include <set>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "checkpoint/rewrite.h"
#include "config/family.h"
#include "config/load.h"
#include "config/model_function.h"
#include "mcore/names.h"
#include "mcore/settings.h"
#include "mcore/write_common.h"
#include "mcore/write_metadata.h"
#include "pickle/torch_file.h"

namespace metroplex::mcore {
namespace {

using checkpoint::TensorSource;
using files::join_path;
using files::TensorForm;
using nlohmann::json;

constexpr const char* kFormat =
    R"({"sharded_backend": "torch_dist", "sharded_backend_version": 1, "common_backend": "torch", )"
    R"("common_backend_version": 1})";

config::Config read_config(const TensorSource& source, const checkpoint::RunState& state) {
  config::Config config = config::parse_saved(state.config_yaml);
  const TensorForm* const embedding = source.find(kEmbedding, "weight");
  MPX_CHECK(embedding != nullptr && embedding->shape.size() == 2, "checkpoint", "'", source.directory(), "' has no ",
            kEmbedding, "; convert a complete checkpoint");
  config.model.vocab_size = embedding->shape[0];
  MPX_CHECK(embedding->dtype != files::Dtype::kF64, "checkpoint", "precision.params_dtype = fp64: Megatron-LM has ",
            "parameters in fp32, bf16 and fp16; train with one of these");
  MPX_CHECK(!config.peft.lora(), "checkpoint", "peft.lora_rank = ", config.peft.lora_rank,
            ": Megatron-LM's GPTModel has no adapters; merge them with metroplex convert --to hf first");
  return config;
}

// Reads the written arguments as `metroplex inspect` does, and throws if they give another model.
void check_model(const std::string& common, const config::Config& config, const std::string& folder) {
  static constexpr const char* kFix =
      "; convert it --to hf instead, or change the key if the weights do not depend on it";
  const config::Family* const family = config::find_family(config.model.family);
  MPX_CHECK(family == nullptr || !family->top_query, "checkpoint", "model.family = ", config.model.family,
            ": Megatron-LM's GPTModel has no such last layer", kFix);
  MPX_CHECK(!config.model.has_linear_attention() && config.model.hybrid_layer_pattern.empty(), "checkpoint",
            "model.hybrid_layer_pattern = ", config.model.hybrid_layer_pattern,
            ", model.experimental_attention_variant = ", config.model.experimental_attention_variant.text(),
            ": Megatron-LM's GPTModel has other layers", kFix);
  const pickle::Document document(common, folder);
  Contents contents;
  contents.arguments = read_arguments(document, document.get(document.root(), "args"));
  StoredTensor embedding;
  embedding.shape = {config.model.vocab_size, config.model.hidden_size};
  contents.tensors.emplace(kEmbedding, embedding);
  const auto there = config::load("", read_settings(contents, folder)).model;
  for (const config::Difference& difference : config::differing_keys(config.model, there))
    base::throw_error("checkpoint",
                      base::concat(difference.key, " = ", difference.here,
                                   ": Megatron-LM's GPTModel cannot represent this value (its args give ",
                                   difference.there, ")", kFix));
}

// Whether every weight has the state of AdamW in fp32.
bool has_fp32_state(const TensorSource& source) {
  return std::all_of(source.tensors().begin(), source.tensors().end(), [&](const TensorForm& tensor) {
    if (tensor.kind != "weight") return true;
    const bool needs_main = tensor.dtype != files::Dtype::kF32;
    for (const char* kind : kStateKinds) {
      const TensorForm* const form = source.find(tensor.name, kind);
      const bool is_stored = form != nullptr && form->dtype == files::Dtype::kF32;
      if (!is_stored && (kind != std::string("main") || needs_main)) return false;
    }
    return true;
  });
}

// Returns the names of a tensor in torch_dist: those that store it alone and whole.
std::vector<std::string> find_names(const MappedTensor& tensor) {
  std::vector<std::string> names;
  for (const std::vector<Part>& parts : tensor.alternatives) {
    if (parts.size() == 1 && parts[0].index.empty() && parts[0].dropped == 0) names.push_back(parts[0].stored);
  }
  return names;
}

std::vector<std::string> find_state_names(const MappedTensor& tensor, const std::string& kind) {
  std::vector<std::string> names = find_names(tensor);
  for (std::string& name : names) name = base::concat("optimizer.state.", kind == "main" ? "param" : kind, ".", name);
  return names;
}

// Modules of layers have an extra state, which is None without fp8. Modules of experts have one per expert.
void add_extra_states(const MappedTensor& tensor, std::vector<std::string>& names) {
  static constexpr std::string_view kWeight = ".weight";
  const int64_t count = tensor.name.find(".mlp.experts.") != std::string::npos ? tensor.shape[0] : 1;
  for (const std::string& name : find_names(tensor)) {
    if (name.find(".layers.") == std::string::npos || !name.ends_with(kWeight)) continue;
    const std::string module = name.substr(0, name.size() - kWeight.size());
    for (int64_t i = 0; i < count; ++i) names.push_back(base::concat(module, "._extra_state/shard_", i, "_", count));
  }
}

class Writer {
 public:
  Writer(files::FileSystem& disk, TensorSource& source, const config::Model& model)
      : disk_(disk), source_(source), mapped_(map_tensors(model)) {}

  // Throws for a weight or buffer that the model does not have.
  void check_names() const {
    std::set<std::string> known;
    for (const MappedTensor& tensor : mapped_) known.insert(tensor.name);
    for (const TensorForm& tensor : source_.tensors()) {
      if (config::is_operand_history(tensor.name)) continue;  // Megatron starts anew
      MPX_CHECK(known.contains(tensor.name), "checkpoint", "'", source_.directory(), "': tensor ", tensor.name,
                ": must be one of Megatron-LM's GPTModel; convert the checkpoint --to hf instead");
    }
  }

  void write_data(const std::string& directory, bool with_state) {
    const auto file = disk_.create(join_path(directory, kDataFile));
    const auto sink = [&](const void* data, size_t size) { file->write(data, size); };
    for (const MappedTensor& tensor : mapped_) {
      write_tensor(find(tensor, tensor.kind), find_names(tensor), sink);
      if (with_state && tensor.kind == "weight") write_state(tensor, sink);
    }
    write_extra_states(sink);
    file->sync();
    file->close();
  }
  std::string pickle_metadata() const { return pickle_items(items_); }

 private:
  const TensorForm& find(const MappedTensor& tensor, const std::string& kind) const {
    const TensorForm* const form = source_.find(tensor.name, kind);
    MPX_CHECK(form != nullptr, "checkpoint", "'", source_.directory(), "' has no ", kind, " ", tensor.name,
              "; convert a complete checkpoint");
    MPX_CHECK(form->shape == tensor.shape, "checkpoint", "'", source_.directory(), "': ", tensor.name, " has shape ",
              checkpoint::describe_shape(form->shape), ", but its configuration requires ",
              checkpoint::describe_shape(tensor.shape), "; convert a checkpoint with its own configuration");
    return *form;
  }

  void write_tensor(const TensorForm& form, std::vector<std::string> names, const pickle::Sink& sink) {
    const uint64_t bytes = pickle::write_tensor_file(sink, form.dtype, form.shape, [&](const pickle::Sink& out) {
      checkpoint::read_rows(source_, form, 0, checkpoint::row_count(form), out);
    });
    items_.push_back({std::move(names), form.dtype, form.shape, at_, bytes});
    at_ += bytes;
  }

  // A weight in fp32 is its own main parameter.
  void write_state(const MappedTensor& tensor, const pickle::Sink& sink) {
    for (const std::string kind : kStateKinds) {
      std::vector<std::string> names = find_state_names(tensor, kind);
      if (kind == "main" && source_.find(tensor.name, kind) == nullptr) {
        std::move(names.begin(), names.end(), std::back_inserter(items_.back().names));
      } else {
        write_tensor(find(tensor, kind), std::move(names), sink);
      }
    }
  }

  // All extra states are one item: a list with None, as Megatron writes it.
  void write_extra_states(const pickle::Sink& sink) {
    Item item;
    for (const MappedTensor& tensor : mapped_) add_extra_states(tensor, item.names);
    pickle::ValueWriter writer;
    writer.begin_list();
    writer.none();
    writer.end_list();
    item.offset = at_;
    item.bytes = pickle::write_torch_file(sink, "archive", writer.take());
    at_ += item.bytes;
    items_.push_back(std::move(item));
  }

  files::FileSystem& disk_;
  TensorSource& source_;
  const std::vector<MappedTensor> mapped_;
  std::vector<Item> items_;
  uint64_t at_ = 0;  // bytes in the data file
};

void write_file(files::FileSystem& disk, const std::string& path, std::string_view text) {
  const auto file = disk.create(path);
  file->write(text);
  file->sync();
  file->close();
}

std::string to_torch_file(const std::string& pickle) {
  std::string text;
  pickle::write_torch_file([&](const void* data, size_t size) { text.append(static_cast<const char*>(data), size); },
                           "common", pickle);
  return text;
}

// Returns why the optimizer state is not converted; "" if it is, or if there is none.
std::string find_state_problem(const TensorSource& source, const config::Config& config, int64_t steps) {
  if (steps == 0) return "";
  if (config.optim.optimizer != "adam")
    return base::concat("optim.optimizer = ", config.optim.optimizer,
                        ": only the state of adam is converted; resume with Megatron's --no-load-optim");
  if (config.optim.decoupled_lr > 0)
    return base::concat("optim.decoupled_lr = ", config.optim.decoupled_lr,
                        ": its groups of parameters are not converted; resume with Megatron's --no-load-optim");
  if (has_fp32_state(source)) return "";
  return base::concat("'", source.directory(), "': the optimizer state is not converted, because it is not complete ",
                      "in fp32; resume with Megatron's --no-load-optim");
}

}  // namespace

std::vector<std::string> write_checkpoint(files::FileSystem& disk, TensorSource& source,
                                          const checkpoint::RunState& state, bool weights_only,
                                          const std::string& folder) {
  const config::Config config = read_config(source, state);
  CommonState common{config, json::parse(state.extra), {state.iteration, state.consumed_samples, false}};
  for (const char* key : {"optimizer_steps", "scheduled_samples"}) {
    const json value = common.extra.value(key, json(0));
    MPX_CHECK(value.is_number_integer(), "checkpoint", "'", source.directory(), "', extra.", key, " = ", value.dump(),
              ": must be an integer; convert another checkpoint of the run");
  }
  const int64_t steps = common.extra.value("optimizer_steps", int64_t{0});
  const std::string problem = weights_only ? "" : find_state_problem(source, config, steps);
  common.progress.has_optimizer = !weights_only && steps > 0 && problem.empty();
  const std::string pickle = pickle_common(common);
  check_model(pickle, config, folder);
  Writer writer(disk, source, config.model);
  writer.check_names();
  disk.make_whole(folder, [&](const std::string& part) {
    const std::string name = state.iteration > 0 ? iteration_name(state.iteration) : "release";
    const std::string directory = join_path(part, name);
    disk.make_directory(directory);
    writer.write_data(directory, common.progress.has_optimizer);
    write_file(disk, join_path(directory, ".metadata"), writer.pickle_metadata());
    write_file(disk, join_path(directory, "common.pt"), to_torch_file(pickle));
    write_file(disk, join_path(directory, "metadata.json"), kFormat);
    disk.sync_directory(directory);
    write_file(disk, join_path(part, kTracker), state.iteration > 0 ? std::to_string(state.iteration) : name);
  });
  return problem.empty() ? std::vector<std::string>{} : std::vector{problem};
}

}  // namespace metroplex::mcore
