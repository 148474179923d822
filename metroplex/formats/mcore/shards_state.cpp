// Optimizer state of the torch format: in model_optim_rng.pt for each parameter, or in distrib_optim.pt as buffers.
#include "mcore/shards.h"

#include <algorithm>
#include <limits>
#include <set>

#include "base/error.h"

namespace metroplex::mcore {
namespace {

using pickle::Document;
using pickle::Kind;
using pickle::TorchFile;
using pickle::Value;

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

double read_number(const Value& value) {
  return value.kind == Kind::integer ? static_cast<double>(value.integer) : value.real;
}

// Returns a number, also of a tensor with one element; 0 for other values.
int64_t read_count(const TorchFile& file, const Value& value) {
  double number = read_number(value);
  if (TorchFile::is_tensor(value)) {
    const pickle::Tensor tensor = file.tensor(value);
    if (checkpoint::whole_piece(tensor.shape).count() == 1)
      number = files::element_as_double(tensor.dtype, tensor.data, 0);
  }
  return number >= 1 && number <= 0x1p53 ? static_cast<int64_t>(number) : 0;
}

// Returns the value of an integer key of a dict; nullptr if there is none.
const Value* find_index(const Value& dict, int64_t key) {
  if (dict.kind != Kind::dict) return nullptr;
  for (size_t i = 0; i + 1 < dict.items.size(); i += 2) {
    if (dict.items[i]->kind == Kind::integer && dict.items[i]->integer == key) return dict.items[i + 1];
  }
  return nullptr;
}

// Returns the state of one of several optimizers, or `value` itself if there is only one.
const Value* find_part(const Value& value, int64_t part) {
  if (value.kind == Kind::list) {
    const auto index = static_cast<size_t>(part);
    return index < value.items.size() ? value.items[index] : nullptr;
  }
  const bool has_parts = value.kind == Kind::dict && !value.items.empty() && value.items[0]->kind == Kind::integer;
  if (has_parts) return find_index(value, part);
  return part == 0 ? &value : nullptr;
}

bool has_decay(const Shard& shard) { return shard.size.size() > 1 && !shard.name.ends_with(".bias"); }

// Reads the state that an optimizer has for each parameter. Groups of parameters differ in their weight decay.
class PlainReader {
 public:
  PlainReader(const TorchFile& file, const Layout& layout, std::vector<ShardState>& out)
      : file_(file), document_(file.document()), layout_(layout), out_(out) {}

  std::string read(const Value& optimizer, const std::vector<std::vector<Shard>>& chunks, bool experts) {
    const Value* const inner = document_.find(optimizer, "optimizer");
    const Value& torch = inner == nullptr ? optimizer : *inner;
    const Value* const states = document_.find(torch, "state");
    if (states == nullptr) return "the optimizer has no state of each parameter";
    const Value* const mains = document_.find(optimizer, "fp32_from_fp16_params");
    const auto& groups = document_.sequence(document_.get(torch, "param_groups"), "param_groups");
    std::set<bool> seen;
    for (size_t i = 0; i < groups.size(); ++i) {
      const Value* const decay = document_.find(*groups[i], "wd_mult");
      const bool decays = decay == nullptr || read_number(*decay) != 0;
      const std::vector<const Shard*> shards = list_group(chunks, experts, decays);
      const auto& ids = document_.sequence(document_.get(*groups[i], "params"), "params");
      if (ids.empty()) continue;
      if (ids.size() != shards.size() || !seen.insert(decays).second)
        return "its groups of parameters are not those of weight decay";
      const std::string problem = read_group(*states, ids, shards, list_mains(mains, i));
      if (!problem.empty()) return problem;
    }
    return "";
  }

 private:
  // Returns the main parameters of group `index`; empty for an fp32 model.
  std::vector<const Value*> list_mains(const Value* mains, size_t index) const {
    if (mains == nullptr) return {};
    const auto& groups = document_.sequence(*mains, "fp32_from_fp16_params");
    if (index >= groups.size()) document_.fail(*mains, "a group of main parameters is missing");
    return document_.sequence(*groups[index], "a group of main parameters");
  }

  std::vector<const Shard*> list_group(const std::vector<std::vector<Shard>>& chunks, bool experts,
                                       bool decays) const {
    std::vector<const Shard*> shards;
    for (const std::vector<Shard>& chunk : chunks) {
      for (const Shard& shard : chunk) {
        if ((shard.is_expert && layout_.ep > 1) == experts && has_decay(shard) == decays) shards.push_back(&shard);
      }
    }
    return shards;
  }

  std::string read_group(const Value& states, const std::vector<const Value*>& ids,
                         const std::vector<const Shard*>& shards, const std::vector<const Value*>& mains) {
    size_t main = 0;
    for (size_t i = 0; i < ids.size(); ++i) {
      const Shard& shard = *shards[i];
      const Value* const state = find_index(states, document_.integer(*ids[i], "the id of a parameter"));
      if (state == nullptr) return "the state of " + shard.name + " is missing";
      for (const char* kind : {"exp_avg", "exp_avg_sq"}) {
        const Value* const tensor = document_.find(*state, kind);
        if (tensor == nullptr) return "it is not the state of Adam";
        if (!add(shard, kind, *tensor)) return base::concat(kind, " of ", shard.name, " has another shape");
      }
      if (shard.dtype == files::Dtype::kF32) continue;  // is its own main parameter
      if (main >= mains.size()) return "the main parameter of " + shard.name + " is missing";
      if (!add(shard, "main", *mains[main++])) return "the main parameter of " + shard.name + " has another shape";
    }
    return "";
  }

  bool add(const Shard& shard, const char* kind, const Value& value) {
    const pickle::Tensor tensor = file_.tensor(value);
    if (tensor.shape != shard.size) return false;
    out_.push_back({&shard, kind, tensor});
    return true;
  }

  const TorchFile& file_;
  const Document& document_;
  const Layout& layout_;
  std::vector<ShardState>& out_;
};

// Reads the buffers of one optimizer, each joined from its buckets.
std::string read_buffers(const TorchFile& file, const Value& state, const Arguments& arguments, bool first_stage,
                         const std::vector<Buffer>& buffers, std::vector<ShardState>& out) {
  const Document& document = file.document();
  const Value* const coalesced = document.find(state, "buckets_coalesced");
  if (coalesced == nullptr || coalesced->integer == 0)
    return "distrib_optim.pt is of an older form, which stores each bucket separately";
  static constexpr std::pair<const char*, const char*> kKinds[] = {
      {"param", "main"}, {"exp_avg", "exp_avg"}, {"exp_avg_sq", "exp_avg_sq"}};
  for (size_t i = 0; i < buffers.size(); ++i) {
    const Value* const dtypes = find_index(state, static_cast<int64_t>(i));
    if (dtypes == nullptr || dtypes->kind != Kind::dict || dtypes->items.size() != 2)
      return base::concat("distrib_optim.pt has no buffer ", i);
    const std::vector<const Shard*>& shards = buffers[i].shards;
    const bool is_divided = first_stage && buffers[i].chunk == 0;
    const Buckets buckets = place_shards(shards, make_bucket_rule(arguments, read_layout(arguments), is_divided));
    std::vector<int64_t> begins{0};
    for (const int64_t size : buckets.sizes) begins.push_back(begins.back() + size);
    for (const auto& [theirs, kind] : kKinds) {
      const pickle::Tensor buffer = file.tensor(document.get(*dtypes->items[1], theirs));
      if (buffer.shape != Dims{begins.back()})
        return base::concat("buffer ", i, " of distrib_optim.pt has ", checkpoint::describe_shape(buffer.shape),
                            " elements, but the buckets of its parameters have ", begins.back());
      const int64_t width = files::dtype_bits(buffer.dtype) / 8;
      for (size_t n = 0; n < shards.size(); ++n) {
        const Place& place = buckets.places[n];
        const std::byte* const data = buffer.data + (begins[place.bucket] + place.begin) * width;
        out.push_back({shards[n], kind, {buffer.dtype, shards[n]->size, data}});
      }
    }
  }
  return "";
}

}  // namespace

BucketRule make_bucket_rule(const Arguments& arguments, const Layout& layout, bool is_divided) {
  const int64_t standard =
      std::max<int64_t>(40'000'000, 1'000'000 * integer_argument(arguments, "data_parallel_size", 1));
  const int64_t limit = is_divided && is_true(arguments, "overlap_grad_reduce")
                            ? integer_argument(arguments, "ddp_bucket_size", standard)
                            : kUnlimited;
  const bool shares = layout.tied && layout.pp > 1;
  const auto is_shared = [shares](const Shard& shard) {
    return shares && (shard.name == "embedding.word_embeddings.weight" || shard.name == "output_layer.weight");
  };
  return {[=](const Shard& shard, size_t, int64_t) { return is_shared(shard); },
          [=](const Shard& shard, size_t, int64_t at) { return at >= limit || is_shared(shard); }};
}

int64_t read_steps(const TorchFile& file, const Value& optimizer) {
  const Document& document = file.document();
  if (optimizer.kind == Kind::integer || optimizer.kind == Kind::real || TorchFile::is_tensor(optimizer))
    return read_count(file, optimizer);
  const Value* state = find_part(optimizer, 0);
  if (state == nullptr) return 0;
  if (document.find(*state, "optimizer") != nullptr) state = document.find(*state, "optimizer");
  const Value* const params = document.find(*state, "state");
  const Value* const common = params == nullptr ? nullptr : document.find(*params, "common_step");
  if (common != nullptr) return read_count(file, *common);
  const Value* const first = params == nullptr ? nullptr : find_index(*params, 0);
  if (const Value* const step = first == nullptr ? nullptr : document.find(*first, "step"); step != nullptr)
    return read_count(file, *step);
  const Value* const groups = document.find(*state, "param_groups");
  if (groups == nullptr || groups->kind != Kind::list || groups->items.empty()) return 0;
  const Value* const step = document.find(*groups->items.front(), "step");
  return step == nullptr ? 0 : read_count(file, *step);
}

std::string read_rank_state(const TorchFile& file, const TorchFile* buffers, const Arguments& arguments,
                            bool first_stage, const std::vector<std::vector<Shard>>& chunks,
                            std::vector<ShardState>& out) {
  const Layout layout = read_layout(arguments);
  const Document& document = file.document();
  const Value* const optimizers = document.find(document.root(), "optimizer");
  if (optimizers == nullptr) return "";
  for (const bool experts : {false, true}) {
    const std::vector<Buffer> lists = list_buffers(chunks, layout, experts);
    if (lists.empty()) continue;
    const int64_t part = experts && layout.ep > 1 ? 1 : 0;
    std::string problem;
    if (buffers == nullptr) {
      const Value* const state = find_part(*optimizers, part);
      problem = state == nullptr ? "the state of the experts is missing"
                                 : PlainReader(file, layout, out).read(*state, chunks, experts);
    } else {
      const Value* const state = find_part(buffers->document().root(), part);
      if (state == nullptr) return "distrib_optim.pt has no state of the experts";
      if (state->kind == Kind::none) continue;  // another expert-parallel rank has it
      problem = read_buffers(*buffers, *state, arguments, first_stage, lists, out);
    }
    if (!problem.empty()) return problem;
  }
  return "";
}

}  // namespace metroplex::mcore
