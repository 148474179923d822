#include "run/run_lines.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdio>

#include "base/error.h"
#include "base/join.h"
#include "checkpoint/directory.h"
#include "config/attention.h"
#include "config/experts.h"
#include "config/load.h"
#include "config/name_patterns.h"
#include "config/peft.h"
#include "device/device.h"
#include "data/build.h"
#include "hf/directory.h"

namespace metroplex::run {

using base::concat;

namespace {

std::string layout_line(const step::ProcessContext& process) {
  const config::Parallel& parallel = process.config.parallel;
  std::string line =
      concat(" layout: ", process.world->size(), " ranks, tp ", parallel.tp(), " x pp ", parallel.pp());
  if (parallel.vpp() > 1) line += concat(" (", parallel.vpp(), " virtual stages each)");
  line += concat(" x dp ", process.groups().dp.size());
  if (process.config.model.has_experts()) line += concat(", experts: ep ", parallel.ep(), ", etp ", parallel.etp());
  if (parallel.sequence_parallel) line += ", sequence parallel";
  if (parallel.data_parallel_sharding_strategy != config::ShardingStrategy::no_shard)
    line += concat(", ZeRO: ", parallel.data_parallel_sharding_strategy.text());
  return line;
}

std::string batch_line(const step::ProcessContext& process, const step::RunLength& length) {
  const config::Train& train = process.config.train;
  return concat(" batches: ", length.full_batch_size, " samples of ", train.seq_length, " tokens, microbatches of ",
                train.micro_batch_size, "; ", length.iterations, " iterations, ", length.samples, " samples");
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
std::string data_line(const step::ProcessContext& process, const step::RunLength& length, files::FileSystem& disk) {
  const std::vector<data::SourceTokens> sources =
      data::training_tokens(process.config.data, disk,
                            {process.config.train.seq_length, static_cast<uint64_t>(process.config.run.seed), true});
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

std::string device_line(const step::ProcessContext& process) {
  const std::string dtype = process.config.precision.params_dtype.text();
  if (!process.world->device().is_cpu()) {
    const std::string own = config::own_attention(process.config, device::compute_capability());
    return concat(" device: ", process.world->device().str(), ", ", dtype, own.empty() ? "" : "; " + own);
  }
  return concat(" device: cpu, ", at::get_num_threads(), " threads per rank, ", dtype);
}

// Resets do not change positions that are relative or absent.
std::string resets_without_effect(const config::Config& config) {
  const config::PositionEmbedding positions = config.model.position_embedding_type;
  if (!config.data.reset_position_ids || config.data.reset_attention_mask ||
      positions == config::PositionEmbedding::learned_absolute)
    return "";
  const bool rotary = positions == config::PositionEmbedding::rope;
  return concat("data.reset_position_ids = true: has no effect ",
                rotary ? "with rotary positions, whose scores depend on distances only"
                       : "with model.position_embedding_type = none",
                "; set data.reset_attention_mask = true to separate documents");
}

std::string missing_ends(const config::Data& data, int64_t eod, files::FileSystem& disk) {
  if (eod < 0 || (!data.reset_position_ids && !data.reset_attention_mask && !data.eod_mask_loss)) return "";
  const std::string endless = data::datasets_without_ends(data, eod, disk);
  if (endless.empty()) return "";
  return concat("no end-of-document token (", eod, ") in the first documents of ", endless,
                ": data.reset_position_ids, data.reset_attention_mask and data.eod_mask_loss have no effect there; "
                "run metroplex preprocess with --append-eod");
}

std::string untrained_rows(const config::Config& config, files::FileSystem& disk) {
  const int64_t rows = config.model.vocab_size - hf::vocabulary_size(disk, config.model.from);
  std::vector<std::string> words;
  for (const config::SavedModule& module : config::saved_modules(config.model)) {
    if (!config::trains(config, module.param)) words.emplace_back(module.word);
  }
  if (rows <= 0 || words.empty()) return "";
  return concat("model.vocab_size = ", config.model.vocab_size, ": adds ", rows, " rows to the vocabulary of ",
                config.model.from, ", and no step trains them in ", base::join(words, " and "), "; set ",
                config.peft.lora() ? concat("peft.modules_to_save = [", base::join(words, ", "), "]")
                                   : "train.trainable and train.freeze so that these modules are trained");
}

}  // namespace

std::vector<std::string> run_lines(const step::ProcessContext& process, const step::RunLength& length,
                                   files::FileSystem& disk) {
  return {layout_line(process), batch_line(process, length), data_line(process, length, disk), device_line(process)};
}

std::string balance_warning(const config::Model& m) {
  const bool forced = m.moe_router_force_load_balancing || m.moe_router_force_even || m.moe_router_force_skew > 0 ||
                      !m.moe_router_force_trace.empty();
  const bool balanced = !config::aux_losses(m).empty() || config::sinkhorn(m) || m.moe_router_enable_expert_bias;
  if (!m.has_experts() || forced || balanced) return "";
  return "nothing balances the load of the experts: a few of them may get nearly all tokens. Set "
         "model.moe_aux_loss_coeff (0.01 is usual), model.moe_router_enable_expert_bias = true, or "
         "model.moe_router_load_balancing_type = sinkhorn";
}

std::vector<std::string> start_warnings(const config::Config& config, int64_t eod, files::FileSystem& disk) {
  std::vector<std::string> all{balance_warning(config.model), resets_without_effect(config),
                               missing_ends(config.data, eod, disk)};
  const std::string& from = config.model.from;  // a resumed run does not need this directory
  if (!from.empty() && disk.exists(files::join_path(from, "config.json"))) {
    all.push_back(untrained_rows(config, disk));
    for (std::string& note : hf::directory_notes(disk, from)) all.push_back(std::move(note));
  }
  std::erase(all, "");
  return all;
}

std::string write_run_config(const config::Config& config, files::FileSystem& disk) {
  if (config.checkpoint.save.empty()) return "";
  const std::string path = files::join_path(config.checkpoint.save, checkpoint::kRunConfig);
  disk.replace_file(path, config::dump(config));
  return path;
}

}  // namespace metroplex::run
