// torch: one folder mp_rank_TT[_PPP[_EEE]] per tensor-, pipeline- and expert-parallel rank, each with
// model_optim_rng.pt. A rank numbers its own layers and experts from 0.
#include "mcore/contents.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <set>
#include <tuple>

#include "base/error.h"

namespace metroplex::mcore {
namespace {

using files::join_path;
using pickle::TorchFile;
using pickle::Value;

constexpr int kReplicated = -1;
constexpr double kQkvVersion = 3.0;  // older versions order the rows of linear_qkv differently

struct Rank {
  int64_t tp = 0, pp = 0, ep = 0;
  std::string path;
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
    rank.path = join_path(join_path(directory, name), "model_optim_rng.pt");
    MPX_CHECK(disk.exists(rank.path), "checkpoint", "'", rank.path,
              "' is missing; save the checkpoint with --ckpt-format torch");
    ranks.push_back(rank);
  }
  std::sort(ranks.begin(), ranks.end(), [](const Rank& one, const Rank& other) {
    return std::tie(one.pp, one.tp, one.ep) < std::tie(other.pp, other.tp, other.ep);
  });
  return ranks;
}

// Returns the dimension of a tensor without layers that tensor parallelism divides.
int find_split(const std::string& name) {
  const auto ends = [&](std::initializer_list<const char*> words) {
    return std::any_of(words.begin(), words.end(), [&](const char* word) { return name.ends_with(word); });
  };
  if (ends({"linear_proj.weight", "linear_fc2.weight"})) return 1;
  const bool divided =
      ends({"word_embeddings.weight", "output_layer.weight", "linear_qkv.weight", "linear_qkv.bias",
            "linear_fc1.weight", "linear_fc1.bias", "linear_q_proj.weight", "linear_q_up_proj.weight",
            "linear_kv_up_proj.weight", "eh_proj.weight", "core_attention.softmax_offset"});
  return divided ? 0 : kReplicated;
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
  RankJoiner(std::string directory, Contents& out) : directory_(std::move(directory)), out_(out) {
    const auto& args = out.arguments;
    tp_ = std::max<int64_t>(integer_argument(args, "tensor_model_parallel_size", 1), 1);
    pp_ = std::max<int64_t>(integer_argument(args, "pipeline_model_parallel_size", 1), 1);
    ep_ = std::max<int64_t>(integer_argument(args, "expert_model_parallel_size", 1), 1);
    etp_ = std::max<int64_t>(integer_argument(args, "expert_tensor_parallel_size", tp_), 1);
    chunks_ = std::max<int64_t>(integer_argument(args, "virtual_pipeline_model_parallel_size", 1), 1);
    experts_ = integer_argument(args, "num_experts", 0);
    for (const char* name : {"swiglu", "quick_geglu"}) {
      const auto found = args.find(name);
      gated_ = gated_ || (found != args.end() && found->second == std::vector<std::string>{"True"});
    }
  }
  bool has_stages() const { return pp_ > 1; }

  // Layers of a model chunk follow those of the previous stage, and model chunks are filled stage by stage.
  void join(const std::vector<Rank>& ranks, std::vector<std::unique_ptr<TorchFile>>& files) {
    check_ranks(ranks);
    int64_t first_layer = 0;
    for (int64_t chunk = 0; chunk < chunks_; ++chunk) {
      for (int64_t stage = 0; stage < pp_; ++stage) {
        last_layer_ = -1;
        for (size_t i = 0; i < ranks.size(); ++i) {
          if (ranks[i].pp == stage) add_rank(ranks[i], *files[i], chunk, first_layer);
        }
        first_layer += last_layer_ + 1;
      }
    }
    out_.files = std::move(files);
  }

 private:
  // The folders must be those of the sizes in the args.
  void check_ranks(const std::vector<Rank>& ranks) const {
    const int64_t ep = experts_ > 0 ? ep_ : 1;
    const auto position = [](const Rank& rank) { return std::tuple(rank.tp, rank.pp, rank.ep); };
    std::set<std::tuple<int64_t, int64_t, int64_t>> found;
    for (const Rank& rank : ranks) {
      MPX_CHECK(found.insert(position(rank)).second, "checkpoint", "'", rank.path,
                "': another folder is of the same rank; remove the folders of other runs");
      MPX_CHECK(rank.tp < tp_ && rank.pp < pp_ && rank.ep < ep, "checkpoint", "'", rank.path,
                "' is not of this checkpoint: its args have tensor, pipeline and expert parallel sizes ", tp_, ", ",
                pp_, " and ", ep, "; remove folders of other runs");
    }
    for (Rank rank; rank.pp < pp_; ++rank.pp) {
      for (rank.tp = 0; rank.tp < tp_; ++rank.tp) {
        for (rank.ep = 0; rank.ep < ep; ++rank.ep)
          MPX_CHECK(found.contains(position(rank)), "checkpoint", "'", directory_,
                    "' has no mp_rank folder of tensor-parallel rank ", rank.tp, " of ", tp_, ", pipeline stage ",
                    rank.pp, " of ", pp_, " and expert-parallel rank ", rank.ep, " of ", ep,
                    "; copy the folders of all ranks");
      }
    }
  }

  void add_rank(const Rank& rank, const TorchFile& file, int64_t chunk, int64_t first_layer) {
    const pickle::Document& document = file.document();
    const std::string key = chunks_ > 1 ? base::concat("model", chunk) : "model";
    const auto& pairs = document.pairs(document.get(document.root(), key), key.c_str());
    for (size_t i = 0; i < pairs.size(); i += 2) {
      const std::string name = strip_prefix(std::string(document.text(*pairs[i], "the name of a tensor")));
      if (name == "language_model")
        document.fail(*pairs[i],
                      "the model is one of Megatron-LM before megatron.core, whose names are not supported",
                      "load and save it with --use-mcore-models");
      if (TorchFile::is_tensor(*pairs[i + 1])) add_tensor(rank, name, file.tensor(*pairs[i + 1]), first_layer);
    }
  }

  void add_tensor(const Rank& rank, std::string name, const pickle::Tensor& tensor, int64_t first_layer) {
    if (!is_model_tensor(name)) return;
    int64_t layer = 0;
    std::string rest;
    if (split_number(name, "decoder.layers.", layer, rest)) {
      last_layer_ = std::max(last_layer_, layer);
      name = base::concat("decoder.layers.", first_layer + layer, rest);
    }
    const bool is_expert = rename_expert(rank, name);
    const int64_t parts = is_expert ? etp_ : tp_;
    const int64_t part = is_expert && etp_ == 1 ? 0 : rank.tp;
    if (!seen_.insert({name, part}).second) return;  // a replica
    const int split = parts == 1 ? kReplicated : is_divided_latent(name, tensor) ? 0 : find_split(name);
    if (split == kReplicated && part != 0) return;
    const bool is_gated = gated_ && (name.ends_with("linear_fc1.weight") || name.ends_with("linear_fc1.bias"));
    add_chunks(name, tensor, split == kReplicated ? 0 : split, split == kReplicated ? 1 : parts,
               split == kReplicated ? 0 : part, is_gated ? 2 : 1);
  }

  // Some versions divide the projections to the latents of attention, others replicate them.
  bool is_divided_latent(const std::string& name, const pickle::Tensor& tensor) const {
    const auto width = [&](const char* argument) { return integer_argument(out_.arguments, argument, 0); };
    const int64_t rows = tensor.shape.empty() ? 0 : tensor.shape[0] * tp_;
    return (name.ends_with("linear_q_down_proj.weight") && rows == width("q_lora_rank")) ||
           (name.ends_with("linear_kv_down_proj.weight") &&
            rows == width("kv_lora_rank") + width("qk_pos_emb_head_dim"));
  }

  // Numbers an expert globally: "mlp.experts.local_experts.0." of ep rank 1 becomes local_experts.E. Returns whether
  // the tensor belongs to an expert.
  bool rename_expert(const Rank& rank, std::string& name) const {
    const int64_t local = experts_ / ep_;
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

  // Adds shard `part` of `parts` along dimension `split`. Each of its `groups` (gate and up) is divided separately.
  void add_chunks(const std::string& name, const pickle::Tensor& tensor, int split, int64_t parts, int64_t part,
                  int64_t groups) {
    const auto dim = static_cast<size_t>(split);
    StoredTensor& stored = out_.tensors[name];
    Dims shape = tensor.shape;
    MPX_CHECK(parts == 1 || (dim < shape.size() && shape[dim] % groups == 0), "checkpoint", "'", directory_,
              "': ", name, " has shape ", checkpoint::describe_shape(shape),
              ", which tensor parallelism cannot divide; copy the folders of one checkpoint");
    if (parts > 1) shape[dim] *= parts;
    MPX_CHECK(stored.chunks.empty() || (stored.shape == shape && stored.dtype == tensor.dtype), "checkpoint", "'",
              directory_, "': the shards of ", name,
              " have different shapes or dtypes; copy the folders of one checkpoint");
    stored.dtype = tensor.dtype, stored.shape = shape;
    if (parts == 1) groups = 1;
    Dims offset(shape.size(), 0), size = tensor.shape;
    const std::byte* data = tensor.data;
    if (parts > 1) size[dim] /= groups;
    const int64_t bytes = checkpoint::whole_piece(size).count() * files::dtype_bits(tensor.dtype) / 8;
    for (int64_t group = 0; group < groups; ++group, data += bytes) {
      if (parts > 1) offset[dim] = (group * parts + part) * size[dim];
      stored.chunks.push_back({offset, size, data});
    }
  }

  const std::string directory_;
  Contents& out_;
  int64_t tp_ = 1, pp_ = 1, ep_ = 1, etp_ = 1, chunks_ = 1, experts_ = 0;
  bool gated_ = false;
  int64_t last_layer_ = -1;  // of the current model chunk
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
  std::vector<std::unique_ptr<TorchFile>> files;
  for (const Rank& rank : ranks) files.push_back(open(rank.path));
  joiner.join(ranks, files);
  return contents;
}

}  // namespace metroplex::mcore
