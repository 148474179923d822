// torch: one folder mp_rank_TT[_PPP[_EEE]] per tensor-, pipeline- and expert-parallel rank, each with
// model_optim_rng.pt. A rank numbers its own layers and experts from 0.
#include "mcore/contents.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <set>
#include <tuple>

#include "base/error.h"
#include "mcore/shards.h"

namespace metroplex::mcore {
namespace {

using files::join_path;
using pickle::TorchFile;
using pickle::Value;

constexpr double kQkvVersion = 3.0;  // older versions order the rows of linear_qkv differently

struct Rank {
  int64_t tp = 0, pp = 0, ep = 0;
  std::string folder, path;
};

bool parse_rank(const std::string& name, Rank& rank) {
  int64_t* const parts[] = {&rank.tp, &rank.pp, &rank.ep};
  const char* at = name.data() + std::char_traits<char>::length("mp_rank_");
  const char* const end = name.data() + name.size();
  for (int64_t* part : parts) {
    const auto [stop, error] = std::from_chars(at, end, *part);
    if (error != std::errc() || *part < 0) return false;
    if (stop == end) return true;
    if (*stop != '_') return false;
    at = stop + 1;
  }
  return false;
}

std::vector<Rank> find_ranks(files::FileSystem& disk, const std::string& directory, bool has_stages) {
  std::vector<Rank> ranks;
  for (const std::string& name : disk.list(directory)) {
    Rank rank;
    if (!name.starts_with("mp_rank_")) continue;
    MPX_CHECK(parse_rank(name, rank), "checkpoint", "'", directory, "/", name,
              "': must be mp_rank_TT, mp_rank_TT_PPP or mp_rank_TT_PPP_EEE; remove other folders");
    // Without pipeline parallelism, the second number is the expert-parallel rank.
    if (!has_stages && std::count(name.begin(), name.end(), '_') == 3) std::swap(rank.pp, rank.ep);
    rank.folder = join_path(directory, name);
    rank.path = join_path(rank.folder, "model_optim_rng.pt");
    MPX_CHECK(disk.exists(rank.path), "checkpoint", "'", rank.path,
              "' is missing; save the checkpoint with --ckpt-format torch");
    ranks.push_back(rank);
  }
  std::sort(ranks.begin(), ranks.end(), [](const Rank& one, const Rank& other) {
    return std::tie(one.pp, one.tp, one.ep) < std::tie(other.pp, other.tp, other.ep);
  });
  return ranks;
}

// Splits "PREFIX.12.REST" after PREFIX; returns false if there is no number.
bool split_number(const std::string& name, const std::string& prefix, int64_t& number, std::string& rest) {
  if (!name.starts_with(prefix)) return false;
  const char* const end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + prefix.size(), end, number);
  if (error != std::errc() || number < 0) return false;
  rest.assign(stop, end);
  return true;
}

class RankJoiner {
 public:
  RankJoiner(std::string directory, Contents& out)
      : directory_(std::move(directory)), out_(out), layout_(read_layout(out.arguments)) {}
  bool has_stages() const { return layout_.pp > 1; }

  // Layers of a model chunk follow those of the previous stage, and model chunks are filled stage by stage.
  void join(const std::vector<Rank>& ranks, std::vector<std::unique_ptr<TorchFile>>& files) {
    check_ranks(ranks);
    params_.resize(ranks.size());
    int64_t first_layer = 0;
    for (int64_t chunk = 0; chunk < layout_.chunks; ++chunk) {
      for (int64_t stage = 0; stage < layout_.pp; ++stage) {
        last_layer_ = -1;
        for (size_t i = 0; i < ranks.size(); ++i) {
          if (ranks[i].pp != stage) continue;
          params_[i].emplace_back();
          add_rank(ranks[i], *files[i], chunk, first_layer, params_[i].back());
        }
        first_layer += last_layer_ + 1;
      }
    }
    out_.files = std::move(files);
  }

  // Adds the optimizer state, or the reason why it is not read. `buffers`: distrib_optim.pt of each rank, or nullptr.
  void join_state(const std::vector<Rank>& ranks, std::vector<std::unique_ptr<TorchFile>> buffers) {
    std::vector<ShardState> states;
    for (size_t i = 0; i < ranks.size() && out_.state_problem.empty(); ++i)
      out_.state_problem =
          read_rank_state(*out_.files[i], buffers[i].get(), out_.arguments, ranks[i].pp == 0, params_[i], states);
    if (!out_.state_problem.empty()) return;
    for (const ShardState& state : states)
      store(*state.shard, base::concat(state.kind, "/", state.shard->name), state.tensor);
    for (std::unique_ptr<TorchFile>& file : buffers) {
      if (file != nullptr) out_.files.push_back(std::move(file));
    }
  }

 private:
  // The folders must be those of the sizes in the args.
  void check_ranks(const std::vector<Rank>& ranks) const {
    const int64_t tp = layout_.tp, pp = layout_.pp, ep = layout_.experts > 0 ? layout_.ep : 1;
    const auto position = [](const Rank& rank) { return std::tuple(rank.tp, rank.pp, rank.ep); };
    std::set<std::tuple<int64_t, int64_t, int64_t>> found;
    for (const Rank& rank : ranks) {
      MPX_CHECK(found.insert(position(rank)).second, "checkpoint", "'", rank.path,
                "': another folder is of the same rank; remove the folders of other runs");
      MPX_CHECK(rank.tp < tp && rank.pp < pp && rank.ep < ep, "checkpoint", "'", rank.path,
                "' is not of this checkpoint: its args have tensor, pipeline and expert parallel sizes ", tp, ", ",
                pp, " and ", ep, "; remove folders of other runs");
    }
    for (Rank rank; rank.pp < pp; ++rank.pp) {
      for (rank.tp = 0; rank.tp < tp; ++rank.tp) {
        for (rank.ep = 0; rank.ep < ep; ++rank.ep)
          MPX_CHECK(found.contains(position(rank)), "checkpoint", "'", directory_,
                    "' has no mp_rank folder of tensor-parallel rank ", rank.tp, " of ", tp, ", pipeline stage ",
                    rank.pp, " of ", pp, " and expert-parallel rank ", rank.ep, " of ", ep,
                    "; copy the folders of all ranks");
      }
    }
  }

  void add_rank(const Rank& rank, const TorchFile& file, int64_t chunk, int64_t first_layer,
                std::vector<Shard>& params) {
    const pickle::Document& document = file.document();
    const std::string key = layout_.chunks > 1 ? base::concat("model", chunk) : "model";
    const auto& pairs = document.pairs(document.get(document.root(), key), key.c_str());
    for (size_t i = 0; i < pairs.size(); i += 2) {
      const std::string name = strip_prefix(std::string(document.text(*pairs[i], "the name of a tensor")));
      if (name == "language_model")
        document.fail(*pairs[i],
                      "the model is one of Megatron-LM before megatron.core, whose names are not supported",
                      "load and save it with --use-mcore-models");
      if (TorchFile::is_tensor(*pairs[i + 1]))
        add_tensor(rank, name, file.tensor(*pairs[i + 1]), first_layer, params);
    }
  }

  void add_tensor(const Rank& rank, std::string name, const pickle::Tensor& tensor, int64_t first_layer,
                  std::vector<Shard>& params) {
    if (!is_model_tensor(name)) return;
    int64_t layer = 0;
    std::string rest;
    if (split_number(name, "decoder.layers.", layer, rest)) {
      last_layer_ = std::max(last_layer_, layer);
      name = base::concat("decoder.layers.", first_layer + layer, rest);
    }
    const bool is_expert = rename_expert(rank, name);
    const Shard shard = make_shard(out_.arguments, layout_, name, tensor.dtype, tensor.shape, is_expert, rank.tp);
    store(shard, name, tensor);
    if (is_parameter(name)) params.push_back(shard);
  }

  // Megatron's buffers have no optimizer state.
  static bool is_parameter(const std::string& name) {
    return !name.ends_with("expert_bias") && !name.ends_with("tokens_per_expert") && !name.ends_with("inv_freq") &&
           name.find("_extra_state") == std::string::npos;
  }

  void store(const Shard& shard, const std::string& key, const pickle::Tensor& tensor) {
    if (!seen_.insert({key, shard.part}).second || shard.is_replica()) return;
    StoredTensor& stored = out_.tensors[key];
    const Dims shape = shard.shape();
    MPX_CHECK(stored.chunks.empty() || (stored.shape == shape && stored.dtype == tensor.dtype), "checkpoint", "'",
              directory_, "': the shards of ", key,
              " have different shapes or dtypes; copy the folders of one checkpoint");
    stored.dtype = tensor.dtype, stored.shape = shape;
    Chunk data;
    data.data = tensor.data;
    add_chunks(shard, 0, shard.count(), data, stored);
  }

  // Numbers an expert globally: "mlp.experts.local_experts.0." of ep rank 1 becomes local_experts.E. Returns whether
  // the tensor belongs to an expert.
  bool rename_expert(const Rank& rank, std::string& name) const {
    const int64_t local = layout_.experts / layout_.ep;
    int64_t expert = 0;
    std::string rest;
    static const std::string kSequential = ".local_experts.";
    if (const size_t at = name.find(kSequential); at != std::string::npos) {
      const std::string prefix = name.substr(0, at + kSequential.size());
      if (split_number(name, prefix, expert, rest)) name = base::concat(prefix, rank.ep * local + expert, rest);
      return true;
    }
    for (const char* tensor : {"linear_fc1.weight", "linear_fc2.weight", "linear_fc1.bias", "linear_fc2.bias"}) {
      const std::string grouped = base::concat(".experts.", tensor);
      const size_t at = name.find(grouped);
      if (at == std::string::npos || !split_number(name, name.substr(0, at + grouped.size()), expert, rest)) continue;
      name = base::concat(name.substr(0, at), ".experts.local_experts.", rank.ep * local + expert, ".", tensor);
      return true;
    }
    return name.find(".experts.") != std::string::npos;
  }

  const std::string directory_;
  Contents& out_;
  const Layout layout_;
  std::vector<std::vector<std::vector<Shard>>> params_;  // of each rank and model chunk
  int64_t last_layer_ = -1;                              // of the current model chunk
  std::set<std::pair<std::string, int64_t>> seen_;
};

void check_version(const pickle::Document& document) {
  const Value* const version = document.find(document.root(), "checkpoint_version");
  const double number = version == nullptr                       ? 0
                        : version->kind == pickle::Kind::integer ? static_cast<double>(version->integer)
                                                                 : version->real;
  MPX_CHECK(number >= kQkvVersion, "checkpoint", "'", document.path(), "': checkpoint_version = ", number,
            ": must be at least 3.0; load and save it with a newer Megatron-LM");
}

}  // namespace

Contents read_torch(files::FileSystem& disk, const std::string& directory) {
  Contents contents;
  contents.format = "torch";
  std::vector<std::string> names = disk.list(directory);
  const auto first =
      std::find_if(names.begin(), names.end(), [](const std::string& name) { return name.starts_with("mp_rank_"); });
  MPX_CHECK(first != names.end(), "checkpoint", "'", directory,
            "' has no mp_rank_* folder; copy the folders of all ranks");
  const auto open = [&](const std::string& path) { return std::make_unique<TorchFile>(disk.map(path), path); };
  const auto any = open(join_path(join_path(directory, *first), "model_optim_rng.pt"));
  const pickle::Document& document = any->document();
  check_version(document);
  contents.arguments = read_arguments(document, document.get(document.root(), "args"));
  const Value* const iteration = document.find(document.root(), "iteration");
  if (iteration != nullptr && iteration->kind == pickle::Kind::integer) contents.iteration = iteration->integer;
  RankJoiner joiner(directory, contents);
  const std::vector<Rank> ranks = find_ranks(disk, directory, joiner.has_stages());
  std::vector<std::unique_ptr<TorchFile>> files, buffers;
  for (const Rank& rank : ranks) {
    files.push_back(open(rank.path));
    const std::string path = join_path(rank.folder, "distrib_optim.pt");
    buffers.push_back(disk.exists(path) ? open(path) : nullptr);
  }
  joiner.join(ranks, files);
  const Value* const optimizer = document.find(document.root(), "optimizer");
  const bool has_state = optimizer != nullptr && optimizer->kind != pickle::Kind::none;
  if (has_state) contents.optimizer_steps = read_steps(*any, *optimizer);
  contents.scheduled_samples = read_scheduled_samples(document);
  if (has_state) joiner.join_state(ranks, std::move(buffers));
  return contents;
}

}  // namespace metroplex::mcore
