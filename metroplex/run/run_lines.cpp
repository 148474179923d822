#include "run/run_lines.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdio>

#include "base/error.h"
#include "checkpoint/directory.h"
#include "config/attention.h"
#include "config/experts.h"
#include "config/load.h"
#include "device/device.h"
#include "data/build.h"

namespace metroplex::run {

using base::concat;

namespace {

std::string layout_line(const step::Assembly& a) {
  const config::Parallel& p = a.config.parallel;
  std::string line = concat(" layout: ", a.world->size(), " ranks, tp ", p.tp(), " x pp ", p.pp());
  if (p.vpp() > 1) line += concat(" (", p.vpp(), " virtual stages each)");
  line += concat(" x dp ", a.groups().dp.size());
  if (a.config.model.has_experts()) line += concat(", experts: ep ", p.ep(), ", etp ", p.etp());
  if (p.sequence_parallel) line += ", sequence parallel";
  if (p.data_parallel_sharding_strategy != config::ShardingStrategy::no_shard)
    line += concat(", ZeRO: ", p.data_parallel_sharding_strategy.text());
  return line;
}

std::string batch_line(const step::Assembly& a, const step::RunLength& length) {
  const config::Train& t = a.config.train;
  return concat(" batches: ", length.full_batch_size, " samples of ", t.seq_length, " tokens, microbatches of ",
                t.micro_batch_size, "; ", length.iterations, " iterations, ", length.samples, " samples");
}

std::string epochs_text(double epochs) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f epochs", epochs);
  return text;
}

// Describes the tokens from chats and the percentage of them that is learned. Without its loss marks, a chat file
// would be plain text.
std::string chats_text(double tokens, double of_chats, double learned) {
  if (of_chats == 0) return "";
  const bool all = of_chats == tokens;
  return concat(all ? ", from chats: " : concat(", ", static_cast<int64_t>(of_chats), " of them from chats: "),
                std::lround(100 * learned / of_chats), " % of ", all ? "them" : "those", " learned");
}

// One line for all sources, because a blend may have hundreds.
std::string data_line(const step::Assembly& a, const step::RunLength& length, files::FileSystem& disk) {
  const std::vector<data::SourceTokens> sources = data::training_tokens(
      a.config.data, disk, {a.config.train.seq_length, static_cast<uint64_t>(a.config.run.seed), true});
  double most = 0, tokens = 0, of_chats = 0, learned = 0;
  for (const data::SourceTokens& source : sources) {
    if (!source.problem.empty() || source.tokens == 0) continue;
    const auto here = static_cast<double>(source.tokens);
    tokens += here;
    of_chats += source.chats ? here : 0;
    learned += static_cast<double>(source.learned);
    most = std::max(most, source.epochs(static_cast<double>(length.samples)));
  }
  const std::string name = sources.size() == 1 ? sources.front().prefix : concat(sources.size(), " sources");
  if (tokens == 0) return " data: " + name;
  return concat(" data: ", name, ", ", static_cast<int64_t>(tokens), " tokens to train on",
                chats_text(tokens, of_chats, learned), ", ", sources.size() > 1 ? "at most " : "", epochs_text(most));
}

std::string device_line(const step::Assembly& a) {
  const std::string dtype = a.config.precision.params_dtype.text();
  if (!a.world->device().is_cpu()) {
    const std::string own = config::own_attention(a.config, device::compute_capability());
    return concat(" device: ", a.world->device().str(), ", ", dtype, own.empty() ? "" : "; " + own);
  }
  return concat(" device: cpu, ", at::get_num_threads(), " threads per rank, ", dtype);
}

}  // namespace

std::vector<std::string> run_lines(const step::Assembly& a, const step::RunLength& length, files::FileSystem& disk) {
  return {layout_line(a), batch_line(a, length), data_line(a, length, disk), device_line(a)};
}

std::string unbalanced_experts(const config::Model& m) {
  const bool forced = m.moe_router_force_load_balancing || m.moe_router_force_even || m.moe_router_force_skew > 0 ||
                      !m.moe_router_force_trace.empty();
  const bool balanced = !config::aux_losses(m).empty() || config::sinkhorn(m) || m.moe_router_enable_expert_bias;
  if (!m.has_experts() || forced || balanced) return "";
  return "nothing balances the load of the experts: a few of them may get nearly all tokens. Set "
         "model.moe_aux_loss_coeff (0.01 is usual), model.moe_router_enable_expert_bias = true, or "
         "model.moe_router_load_balancing_type = sinkhorn";
}

std::string write_run_config(const config::Config& config, files::FileSystem& disk) {
  if (config.checkpoint.save.empty()) return "";
  const std::string path = files::join_path(config.checkpoint.save, checkpoint::kRunConfig);
  disk.replace_file(path, config::dump(config));
  return path;
}

}  // namespace metroplex::run
