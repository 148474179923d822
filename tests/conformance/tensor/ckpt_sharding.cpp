// ckpt_sharding.json: the shard of each global tensor that a rank of Megatron-LM saves. It is compared with the
// placements of the same model's parameters here on as many ranks. Megatron's whole tensors stack layers and experts
// as first axes and split gated fc1 into gate and up. Its replica_id is (copy of a shared parameter, position among
// ranks with the same elements, data-parallel rank). The recorded `objects` are Transformer Engine's states, which
// have no counterpart.
#include <algorithm>
#include <map>
#include <mutex>

#include "comm/launch.h"
#include "config/fields.h"
#include "config/load.h"
#include "config/validate.h"
#include "conformance/report.h"
#include "topology/rank_grid.h"
#include "step/assemble.h"

namespace metroplex::conformance {
namespace {

using topology::Axis;
using topology::RowRange;

struct KeyShard {
  std::string key;
  std::vector<int64_t> local, global, offset, fragments;
  int prepended = 0;
};

// Adds an axis with one local entry.
void prepend(KeyShard& slice, int64_t entries, int64_t entry) {
  const auto at = slice.global.begin() + slice.prepended;
  slice.offset.insert(slice.offset.begin() + slice.prepended, entry);
  slice.fragments.insert(slice.fragments.begin() + slice.prepended, entries);
  slice.global.insert(at, entries);
  ++slice.prepended;
}

void add_dim(KeyShard& slice, int64_t size, const RowRange& held) {
  slice.local.push_back(held.size);
  slice.global.push_back(size);
  slice.offset.push_back(held.global);
  slice.fragments.push_back(size / held.size);
}

// The rows of `dim` that are contiguous in the whole tensor.
std::vector<RowRange> dim_ranges(const nn::NamedTensor& tensor, size_t dim) {
  const topology::DimShard* cut = topology::find_shard(tensor.placement, static_cast<int>(dim));
  std::vector<RowRange> ranges =
      cut == nullptr ? std::vector<RowRange>{{0, 0, tensor.global_shape[dim]}} : cut->ranges;
  for (size_t i = 1; i < ranges.size();) {
    if (ranges[i - 1].global + ranges[i - 1].size != ranges[i].global) {
      ++i;
      continue;
    }
    ranges[i - 1].size += ranges[i].size;
    ranges.erase(ranges.begin() + static_cast<int64_t>(i));
  }
  return ranges;
}

// "decoder.layers.3.mlp.linear_fc1.weight" -> 3, leaving "decoder.layers.mlp.linear_fc1.weight"; -1: of no layer.
int64_t take_layer(std::string& name) {
  static const std::string kLayers = "decoder.layers.";
  if (name.rfind(kLayers, 0) != 0) return -1;
  const size_t end = name.find('.', kLayers.size());
  const int64_t layer = std::stoll(name.substr(kLayers.size(), end - kLayers.size()));
  name.erase(kLayers.size(), end + 1 - kLayers.size());
  return layer;
}

void replace(std::string& text, const std::string& from, const std::string& to) {
  if (const size_t at = text.find(from); at != std::string::npos) text.replace(at, from.size(), to);
}

// In Megatron the norm before a linear layer is a part of that layer.
std::string megatron_key(std::string name) {
  replace(name, "input_layernorm.", "self_attention.linear_qkv.layer_norm_");
  replace(name, "pre_mlp_layernorm.", "mlp.linear_fc1.layer_norm_");
  replace(name, ".mlp.experts.", ".mlp.experts.experts.");
  return name;
}

std::vector<KeyShard> tensor_shards(const nn::NamedTensor& tensor, const config::Model& model) {
  const bool experts = tensor.placement.grid == topology::Grid::expert;
  std::string name = tensor.name;
  const int64_t layer = take_layer(name);
  const size_t first = experts ? 1 : 0;
  std::vector<RowRange> rows = dim_ranges(tensor, first);
  const bool gated = model.gated_linear_unit && name.find("linear_fc1.") != std::string::npos;
  if (gated && rows.size() == 1) rows = {{0, 0, rows[0].size / 2}, {0, rows[0].size / 2, rows[0].size / 2}};
  std::vector<KeyShard> slices;
  for (const RowRange& held : experts ? dim_ranges(tensor, 0) : std::vector<RowRange>{{0, 0, 1}}) {
    for (int64_t expert = held.global; expert < held.global + held.size; ++expert) {
      for (const RowRange& range : rows) {
        KeyShard slice;
        slice.key = megatron_key(name);
        add_dim(slice, tensor.global_shape[first], range);
        for (size_t dim = first + 1; dim < tensor.global_shape.size(); ++dim)
          add_dim(slice, tensor.global_shape[dim], dim_ranges(tensor, dim).at(0));
        if (layer >= 0) prepend(slice, model.num_layers, layer);
        if (experts) prepend(slice, model.num_moe_experts, expert);
        slices.push_back(slice);
      }
    }
  }
  return slices;
}

Json replica_id(const nn::NamedTensor& tensor, const topology::Coordinates& at) {
  const bool experts = tensor.placement.grid == topology::Grid::expert;
  const topology::AxisSet cut = topology::sharded_axes(tensor.placement);
  const Axis tensor_axis = experts ? Axis::etp : Axis::tp;
  const int same = cut.contains(tensor_axis) ? 0 : at.at(tensor_axis);
  return {tensor.owner ? 0 : 1, same, at.at(experts ? Axis::edp : Axis::dp)};
}

Json rank_entries(const step::Assembly& assembly) {
  const topology::Coordinates at = assembly.process.world->grid().coordinates(assembly.process.world->rank());
  std::vector<const nn::NamedTensor*> tensors(assembly.model.params.begin(), assembly.model.params.end());
  tensors.insert(tensors.end(), assembly.model.buffers.begin(), assembly.model.buffers.end());
  Json list = Json::array();
  for (const nn::NamedTensor* tensor : tensors) {
    const Json replica = replica_id(*tensor, at);
    // The rank that saves here is Megatron's main replica.
    const bool main = replica == Json{0, 0, 0}, first = replica.at(2) == 0;
    MPX_CHECK(main == (first && tensor->counts(at)), "conformance", tensor->name, " on rank ",
              assembly.process.world->rank(), " would be saved twice or not at all");
    for (const KeyShard& slice : tensor_shards(*tensor, assembly.process.config.model)) {
      Json entry = {{"rank", assembly.process.world->rank()},
                    {"key", slice.key},
                    {"local_shape", slice.local},
                    {"global_shape", slice.global},
                    {"global_offset", slice.offset},
                    {"axis_fragmentations", slice.fragments},
                    {"replica_id", replica},
                    {"prepend_axis_num", slice.prepended}};
      const bool padded = slice.key == "embedding.word_embeddings.weight" || slice.key == "output_layer.weight";
      if (padded) entry["allow_shape_mismatch"] = true;
      list.push_back(entry);
    }
  }
  return list;
}

// As the key's text; several kinds of balancing, and their coefficients, are separated by commas.
std::string format_setting(const std::string& name, const Json& value) {
  if (value.is_string()) return value;
  if (!value.is_array() || name == "moe_layer_freq") return value.dump();
  std::string list;
  for (const Json& entry : value) list += (list.empty() ? "" : ",") + format_setting(name, entry);
  return list;
}

// Fields of section model under Megatron's names.
void set_model(config::Config& config, const Json& model) {
  config.model.untie_embeddings_and_output_weights = !model.value("tied", true);
  for (const auto& [name, value] : model.items()) {
    if (name == "tied" || name == "kind") continue;
    const std::string text = format_setting(name, value);
    const auto fields = config::fields(config);
    const auto field = std::find_if(fields.begin(), fields.end(),
                                    [&, &key = name](const auto& f) { return f.key() == "model." + key; });
    MPX_CHECK(field != fields.end() && config::assign_scalar(*field, text), "conformance", "config.model.", name,
              " = ", text, " is not known");
  }
}

int64_t find_rows(const Json& tensors, const std::string& key, int64_t otherwise) {
  for (const Json& tensor : tensors) {
    if (tensor.at("key") == key) return tensor.at("global_shape").at(0);
  }
  return otherwise;
}

std::string ckpt_sharding_case(const Json& run) {
  const Json& given = run.at("config");
  const Json& tensors = run.at("tensors");
  config::Config config;
  set_model(config, given.at("model"));
  for (const auto& [name, value] : given.items()) {
    if (name == "tp") config.parallel.tensor_model_parallel_size = value;
    else if (name == "pp") config.parallel.pipeline_model_parallel_size = value;
    else if (name == "vpp" && !value.is_null()) config.parallel.virtual_pipeline_model_parallel_size = value;
    else if (name == "ep") config.parallel.expert_model_parallel_size = value;
    else if (name == "etp" && !value.is_null()) config.parallel.expert_tensor_parallel_size = value;
    else
      MPX_CHECK(name == "model" || name == "vpp" || name == "etp", "conformance", "config.", name, " is not known");
  }
  config.parallel.sequence_parallel = config.parallel.tp() > 1;
  config.train.train_iters = 1;
  config.train.seq_length = find_rows(tensors, "embedding.position_embeddings.weight", 16);
  config.data.mock_data = true;
  config.model.make_vocab_size_divisible_by = 1;
  config.model.vocab_size = find_rows(tensors, "embedding.word_embeddings.weight", 64);
  int ranks = 1;
  for (const Json& tensor : tensors) ranks = std::max(ranks, tensor.at("rank").get<int>() + 1);
  config::check(config, ranks);
  config = config::resolved(config, ranks);
  Json got = Json::array(), expected = tensors;
  std::mutex mutex;
  comm::run_threads(ranks, topology::RankGrid(ranks, config.parallel), {}, [&](const comm::World& world) {
    const auto assembly = step::assemble(config, world, config.model.vocab_size, /*forward_only=*/true);
    const Json mine = rank_entries(*assembly);
    const std::lock_guard lock(mutex);
    got.insert(got.end(), mine.begin(), mine.end());
  });
  std::sort(got.begin(), got.end());
  std::sort(expected.begin(), expected.end());
  for (size_t i = 0; i < std::min(got.size(), expected.size()); ++i) {
    if (got[i] != expected[i]) return compare(got[i], expected[i]);
  }
  return got.size() == expected.size() ? "" : compare(got.size(), expected.size()) + " slices";
}

}  // namespace

void run_ckpt_sharding(const Json& file, Report& report) {
  const Json runs = file.value("runs", Json::object());
  for (const auto& [name, run] : runs.items())
    report.check(name, run, [&, &one = run] { return ckpt_sharding_case(one); });
}

}  // namespace metroplex::conformance
