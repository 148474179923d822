#include "config/experts.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include "base/digit_groups.h"
#include "base/error.h"
#include "config/derived.h"
#include "config/layer_parts.h"

namespace metroplex::config {
namespace {

using base::concat;

constexpr int64_t kMost = 1 << 17;  // limit of layers and of every number in a pattern
constexpr int kDeepest = 64;        // nesting limit of parentheses

// Parses a Python expression of integers and lists: "([1]*3+[0]*1)*2". Every reader moves `at_` past the text it
// consumes. On failure it sets `problem_`; the first problem is kept.
class PatternReader {
 public:
  PatternReader(const std::string& text, std::string& problem) : problem_(problem) {
    std::copy_if(text.begin(), text.end(), std::back_inserter(text_), [](char c) { return c != ' '; });
  }

  std::optional<std::vector<int64_t>> list() {
    const Value value = sum(0);
    if (good() && at_ < text_.size()) fail(concat("'", text_.substr(at_), "' follows the pattern"));
    if (good() && !value.is_list) fail("it is not a list");
    return good() ? std::optional(value.numbers) : std::nullopt;
  }

 private:
  struct Value {
    bool is_list = false;
    std::vector<int64_t> numbers;  // one element unless is_list
  };

  bool good() const { return problem_.empty(); }
  Value fail(const std::string& why) {
    if (good()) problem_ = why;
    return {false, {0}};
  }
  bool take(char letter) {
    if (at_ >= text_.size() || text_[at_] != letter) return false;
    ++at_;
    return true;
  }

  Value sum(int depth) {
    Value left = product(depth);
    while (good() && take('+')) {
      const Value right = product(depth);
      if (!good()) break;
      if (left.is_list != right.is_list) return fail("a list and a number cannot be added");
      if (left.is_list) {
        left.numbers.insert(left.numbers.end(), right.numbers.begin(), right.numbers.end());
      } else {
        left.numbers[0] += right.numbers[0];
      }
      if (too_large(left)) return fail(concat("it has more than ", kMost, " entries"));
    }
    return left;
  }

  Value product(int depth) {
    Value left = atom(depth);
    while (good() && take('*')) {
      Value right = atom(depth);
      if (!good()) break;
      if (left.is_list && right.is_list) return fail("two lists cannot be multiplied");
      if (right.is_list) std::swap(left, right);
      const int64_t times = right.numbers[0];
      if (!left.is_list) {
        left.numbers[0] *= times;
      } else if (static_cast<int64_t>(left.numbers.size()) * times <= kMost) {
        const std::vector<int64_t> once = std::exchange(left.numbers, {});
        for (int64_t i = 0; i < times; ++i) left.numbers.insert(left.numbers.end(), once.begin(), once.end());
      } else {
        return fail(concat("it has more than ", kMost, " entries"));
      }
      if (too_large(left)) return fail(concat("it has more than ", kMost, " entries"));
    }
    return left;
  }

  Value atom(int depth) {
    if (depth > kDeepest) return fail("its parentheses nest too deep");
    if (take('(')) {
      Value inner = sum(depth + 1);
      if (good() && !take(')')) return fail("a ( is never closed");
      return inner;
    }
    if (take('[')) return entries(depth);
    return number();
  }

  Value entries(int depth) {
    Value list{true, {}};
    while (good() && !take(']')) {
      const Value entry = sum(depth + 1);
      if (!good()) break;
      if (entry.is_list) return fail("a list contains a list");
      list.numbers.push_back(entry.numbers[0]);
      if (!take(',') && (at_ >= text_.size() || text_[at_] != ']')) return fail("a [ is never closed");
    }
    return list;
  }

  Value number() {
    int64_t value = 0;
    const char* const begin = text_.data() + at_;
    const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), value);
    if (error == std::errc::invalid_argument || *begin == '-')
      return fail(at_ < text_.size() ? concat("a number or a list is expected at '", text_.substr(at_), "'")
                                     : "a number or a list is missing at its end");
    if (error != std::errc() || value > kMost) return fail(concat("it has a number above ", kMost));
    at_ += static_cast<size_t>(end - begin);
    return {false, {value}};
  }

  static bool too_large(const Value& value) {
    return value.is_list ? static_cast<int64_t>(value.numbers.size()) > kMost : value.numbers[0] > kMost;
  }

  std::string text_;
  std::string& problem_;
  size_t at_ = 0;
};

std::optional<std::vector<bool>> every_nth(const std::string& text, int64_t num_layers, std::string& problem) {
  int64_t n = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (error != std::errc() || end != text.data() + text.size() || n < 1) {
    problem = "it is neither a whole number of at least 1 nor a pattern with [";
    return std::nullopt;
  }
  std::vector<bool> layers(static_cast<size_t>(num_layers));
  for (int64_t i = 0; i < num_layers; i += n) layers[static_cast<size_t>(i)] = true;
  return layers;
}

}  // namespace

std::optional<std::vector<bool>> read_moe_layers(const std::string& text, int64_t num_layers, std::string& problem) {
  problem.clear();
  if (text.find('[') == std::string::npos) return every_nth(text, num_layers, problem);
  const auto pattern = PatternReader(text, problem).list();
  if (!pattern) return std::nullopt;
  std::vector<bool> layers;
  for (const int64_t entry : *pattern) {
    if (entry != 0 && entry != 1) problem = concat("its entry ", entry, " is neither 0 nor 1");
    layers.push_back(entry == 1);
  }
  if (problem.empty() && static_cast<int64_t>(layers.size()) != num_layers)
    problem = concat("it has ", layers.size(), " entries for model.num_layers = ", num_layers);
  return problem.empty() ? std::optional(layers) : std::nullopt;
}

std::optional<std::vector<bool>> read_window_layers(const std::string& text, int64_t num_layers,
                                                    std::string& problem) {
  problem.clear();
  if (text.empty()) return std::vector<bool>(static_cast<size_t>(num_layers), true);
  if (text.find('[') != std::string::npos) return read_moe_layers(text, num_layers, problem);
  int64_t n = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (error != std::errc() || end != text.data() + text.size() || n < 1) {
    problem = "it is neither a whole number of at least 1 nor a pattern with [";
    return std::nullopt;
  }
  std::vector<bool> layers;
  for (int64_t i = 0; i < num_layers; ++i) layers.push_back((i + 1) % n != 0);
  return layers;
}

// Reads the pattern of a key. `what`: the property of the layers with 1; `fix`: the forms that are accepted.
static std::vector<bool> require_layers(decltype(read_window_layers)* read, const Model& model, const char* key,
                                        const std::string& text, const char* what, const char* fix) {
  std::string problem;
  const auto layers = read(text, model.num_layers, problem);
  MPX_CHECK(layers.has_value(), "config", key, " = ", text, ": must define which layers have ", what, ", but ",
            problem, "; ", fix);
  return *layers;
}

std::vector<bool> window_layers(const Model& model) {
  if (!model.has_local_attention()) return std::vector<bool>(static_cast<size_t>(model.num_layers));
  return require_layers(read_window_layers, model, "model.window_attn_skip_freq", model.window_attn_skip_freq,
                        "a window",
                        "write N for all but every N-th layer, or one 0 or 1 a layer, like [1,0] or [1]*5+[0]");
}

std::vector<bool> linear_attention_layers(const Model& model) {
  if (!model.has_linear_attention()) return std::vector<bool>(static_cast<size_t>(model.num_layers));
  return require_layers(read_window_layers, model, "model.linear_attention_freq", model.linear_attention_freq,
                        "linear attention",
                        "write N for all but every N-th layer, or one 0 or 1 a layer, like [1,0] or [1]*3+[0]");
}

std::optional<std::vector<bool>> read_rope_layers(const std::string& text, int64_t num_layers, std::string& problem) {
  if (text == "0") return std::vector<bool>(static_cast<size_t>(num_layers), true);
  auto layers = read_window_layers(text, num_layers, problem);
  if (layers && text.find('[') != std::string::npos) layers->flip();
  return layers;
}

std::vector<bool> rope_layers(const Model& model) {
  return require_layers(read_rope_layers, model, "model.no_rope_freq", model.no_rope_freq, "no rotary positions",
                        "write N for every N-th layer, or one 0 or 1 a layer, like [0,0,0,1]");
}

std::vector<bool> moe_layers(const Model& model) {
  if (!model.has_experts()) return std::vector<bool>(static_cast<size_t>(model.num_layers));
  if (!model.hybrid_layer_pattern.empty()) {
    std::vector<bool> layers;
    for (const LayerParts& parts : layer_parts(model)) layers.push_back(parts.experts);
    return layers;
  }
  return require_layers(read_moe_layers, model, "model.moe_layer_freq", model.moe_layer_freq, "experts",
                        "write N for every N-th layer, or one 0 or 1 a layer, like [0,1,1,1] or ([0]*1+[1]*3)*2");
}

std::vector<double> longrope_factors(const std::string& text) {
  std::string problem;
  auto factors = read_coefficients(text, problem);
  MPX_CHECK(factors.has_value(), "config", "model.longrope_short_factor or model.longrope_long_factor = ", text,
            ": must be numbers with commas between, but ", problem, "; write one per rotated pair of channels");
  return *factors;
}

std::vector<int64_t> expert_layers(const Model& model) {
  const std::vector<bool> experts = moe_layers(model);
  std::vector<int64_t> numbers;
  for (int64_t layer = 0; layer < model.num_layers; ++layer) {
    if (experts[static_cast<size_t>(layer)]) numbers.push_back(layer);
  }
  for (int64_t i = 0; experts.back() && i < model.mtp_num_layers; ++i) numbers.push_back(model.num_layers + i);
  return numbers;
}

std::vector<std::string> comma_list(const std::string& text) {
  std::vector<std::string> words(1);
  for (const char c : text) {
    if (c == ',') {
      words.emplace_back();
    } else if (c != ' ') {
      words.back() += c;
    }
  }
  return words;
}

std::optional<std::vector<double>> read_coefficients(const std::string& text, std::string& problem) {
  std::vector<double> numbers;
  for (const std::string& written : comma_list(text)) {
    const std::string word = base::without_digit_groups(written);
    double value = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (error != std::errc() || end != word.data() + word.size() || !(value >= 0) || std::isinf(value)) {
      problem = concat("'", word, "' is not a number of at least 0");
      return std::nullopt;
    }
    numbers.push_back(value);
  }
  return numbers;
}

std::vector<AuxLoss> aux_losses(const Model& model) {
  std::string problem;
  const std::vector<std::string> words = comma_list(model.moe_router_load_balancing_type);
  const auto coefficients = read_coefficients(model.moe_aux_loss_coeff, problem);
  MPX_CHECK(
      coefficients.has_value(), "config", "model.moe_aux_loss_coeff = ", model.moe_aux_loss_coeff, ": ", problem,
      "; write one number for each of model.moe_router_load_balancing_type = ", model.moe_router_load_balancing_type);
  MPX_CHECK(coefficients->size() == words.size(), "config", "model.moe_aux_loss_coeff = ", model.moe_aux_loss_coeff,
            ": has ", coefficients->size(), " numbers for the ", words.size(),
            " words of model.moe_router_load_balancing_type = ", model.moe_router_load_balancing_type,
            "; write one for each");
  std::vector<AuxLoss> losses;
  for (size_t i = 0; i < words.size(); ++i) {
    const auto type = value_of<AuxLossType>(words[i]);
    if (type && (*coefficients)[i] > 0) losses.push_back({*type, (*coefficients)[i]});
  }
  return losses;
}

bool sinkhorn(const Model& model) { return model.moe_router_load_balancing_type == "sinkhorn"; }

int64_t expert_ffn_width(const Model& model) {
  return model.moe_ffn_hidden_size > 0 ? model.moe_ffn_hidden_size : ffn_width(model);
}

int64_t expert_row_width(const Model& model) {
  return model.moe_latent_size > 0 ? model.moe_latent_size : model.hidden_size;
}

int64_t expert_capacity(const Model& model, int64_t tokens) {
  // Megatron's order of operations: another order may round a whole product differently.
  const double even =
      static_cast<double>(tokens * model.moe_router_topk) / static_cast<double>(model.num_moe_experts);
  const double asked = std::ceil(even * model.moe_expert_capacity_factor);
  return asked < static_cast<double>(tokens) ? static_cast<int64_t>(asked) : tokens;
}

bool pads_to_capacity(const Model& model) { return model.has_capacity() && model.moe_pad_expert_input_to_capacity; }

int64_t echo_slots(const Model& model, int64_t ep) {
  return model.moe_enable_echo ? model.moe_num_echo_experts / ep : 0;
}

// Returns the maximum rows from one rank to another: a token goes to an expert once.
static int64_t most_rows_of_pair(const Model& model, int64_t tokens, int64_t ep) {
  return tokens * std::min(model.moe_router_topk, model.num_moe_experts / ep + echo_slots(model, ep));
}

static int64_t share(double factor, int64_t rows, int64_t ep, int64_t most) {
  const double asked = std::ceil(factor * static_cast<double>(rows) / static_cast<double>(ep));
  return asked < static_cast<double>(most) ? static_cast<int64_t>(asked) : most;
}

int64_t rank_capacity(const Model& model, int64_t tokens, int64_t etp, int64_t ep) {
  const int64_t ranks = etp * ep;
  return share(model.moe_expert_rank_capacity_factor, ranks * tokens * model.moe_router_topk, ep,
               ranks * most_rows_of_pair(model, tokens, ep));
}

int64_t rank_pair_capacity(const Model& model, int64_t tokens, int64_t ep) {
  const int64_t most = most_rows_of_pair(model, tokens, ep);
  if (model.moe_rank_pair_capacity_factor == 0) return most;
  return share(model.moe_rank_pair_capacity_factor, tokens * model.moe_router_topk, ep, most);
}

int64_t even_rows(const Model& model, int64_t tokens, int64_t etp) { return etp * tokens * model.moe_router_topk; }

double expert_fill(const Model& model, int64_t etp, int64_t ep) {
  const TokenDispatcher kind = token_dispatcher(model, etp * ep);
  const bool gathers = kind == TokenDispatcher::allgather;
  if (!gathers && kind != TokenDispatcher::static_buffer) return 1;
  constexpr int64_t kTokens = int64_t{1} << 20;  // any large number: both counts are proportional to it
  const int64_t most = gathers ? etp * ep * kTokens * std::min(model.moe_router_topk, model.num_moe_experts / ep)
                               : rank_capacity(model, kTokens, etp, ep);
  return std::min(1.0, static_cast<double>(even_rows(model, kTokens, etp)) / static_cast<double>(most));
}

bool is_stash_key(std::string_view name) { return name.rfind("moe_paged_stash", 0) == 0; }

bool is_echo_key(std::string_view name) { return name.find("_echo") != std::string_view::npos; }

void turn_echo_and_stash_off(Model& model) {
  const Model plain;
#define KEY(type, name, value, limits, help) \
  if (is_echo_key(#name) || is_stash_key(#name)) model.name = plain.name;
#include "config/moe_keys.inc"
#undef KEY
}

int64_t echo_eps_basis_points(const Model& model) { return std::llround(model.moe_echo_eps * 10000); }

EchoSplit echo_split(const Model& model) {
  if (model.moe_echo_split != EchoSplit::automatic) return model.moe_echo_split;
  return model.moe_echo_planner == EchoPlanner::greedy ? EchoSplit::breadth_then_depth : EchoSplit::local_first;
}

bool echo_plans_on_device(const Model& model) {
  const bool on_warps =
      model.moe_echo_planner == EchoPlanner::capfill || model.moe_echo_planner == EchoPlanner::exact;
  return on_warps && !model.moe_echo_enable_random_offloading;
}

TokenDispatcher token_dispatcher(const Model& model, int64_t expert_ranks) {
  if (model.moe_token_dispatcher_type != TokenDispatcher::automatic) return model.moe_token_dispatcher_type;
  return expert_ranks == 1 ? TokenDispatcher::local : TokenDispatcher::alltoall;
}

namespace {

// sends_counted_rows: message lengths depend on the routed rows, unless every expert is padded to its capacity.
struct DispatcherTraits {
  TokenDispatcher type;
  bool sends_counted_rows;
};
constexpr DispatcherTraits kDispatcherTraits[] = {{TokenDispatcher::local, false},
                                                  {TokenDispatcher::allgather, false},
                                                  {TokenDispatcher::alltoall, true},
                                                  {TokenDispatcher::hierarchical, true},
                                                  {TokenDispatcher::static_buffer, false}};

}  // namespace

bool dispatcher_reads_counts(const Model& model, int64_t expert_ranks) {
  const TokenDispatcher type = token_dispatcher(model, expert_ranks);
  const auto* traits = std::find_if(std::begin(kDispatcherTraits), std::end(kDispatcherTraits),
                                    [&](const DispatcherTraits& traits) { return traits.type == type; });
  MPX_ASSERT(traits != std::end(kDispatcherTraits), "a token dispatcher without traits: ", text_of(type));
  return traits->sends_counted_rows && expert_ranks > 1 && !pads_to_capacity(model);
}

}  // namespace metroplex::config
