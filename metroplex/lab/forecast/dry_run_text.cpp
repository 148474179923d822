// The human-readable report of a dry run, the log lines at the start of a run, and the error if a run does not fit.
#include "forecast/dry_run.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <set>

#include "base/bytes_text.h"
#include "base/error.h"
#include "config/validate.h"
#include "plan/model_flops.h"

namespace metroplex::forecast {
namespace {

using base::concat;

std::string bytes(int64_t count) { return base::bytes_text(static_cast<double>(count)); }

// "175.2 billion", "1.05e+21": only the leading digits matter.
std::string count_text(double value) {
  const char* const words[] = {"", " thousand", " million", " billion", " trillion"};
  char text[48];
  if (value >= 1e15) {
    std::snprintf(text, sizeof text, "%.3g", value);
    return text;
  }
  size_t word = 0;
  for (; value >= 1000 && word < 4; ++word) value /= 1000;
  std::snprintf(text, sizeof text, word == 0 ? "%.0f" : "%.2f%s", value, words[word]);
  return text;
}

std::string percent(double share) {
  char text[32];
  std::snprintf(text, sizeof text, share != 0 && share < 0.001 ? "%.2g %%" : "%.1f %%", 100 * share);
  return text;
}

// Pads columns to their widest cell; the first column is left-aligned, the others right-aligned.
std::string align_columns(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string out;
  for (const auto& row : rows) {
    std::string line = " ";
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string gap(widths[i] - row[i].size(), ' ');
      line += " " + (i == 0 ? row[i] + gap : " " + gap + row[i]);
    }
    out += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return out;
}

std::string rank_name(const RankFigures& figures) { return concat("rank ", figures.rank, " (pp ", figures.pp, ")"); }

// Returns the rows of the table: all if there are few, else both ends and the worst.
std::set<size_t> rows_to_show(const Fit& fit) {
  constexpr size_t kMost = 16, kEnd = 3;
  std::set<size_t> rows{fit.worst};
  for (size_t i = 0; i < fit.ranks.size(); ++i) {
    if (fit.ranks.size() <= kMost || i < kEnd || i + kEnd >= fit.ranks.size()) rows.insert(i);
  }
  return rows;
}

std::string memory_table(const Fit& fit) {
  std::vector<replay::MemoryCategory> columns;
  for (const replay::MemoryCategory& category : replay::kMemoryCategories) {
    if (std::any_of(fit.ranks.begin(), fit.ranks.end(),
                    [&](const RankFigures& figures) { return figures.prediction.memory.use.*category.bytes != 0; }))
      columns.push_back(category);
  }
  std::vector<std::vector<std::string>> rows(1);
  rows[0] = {""};
  for (const replay::MemoryCategory& column : columns) rows[0].emplace_back(column.name);
  rows[0].emplace_back("peak");
  size_t before = 0;
  for (const size_t i : rows_to_show(fit)) {
    if (i > before + 1) rows.push_back({"..."});
    before = i;
    std::vector<std::string> row{rank_name(fit.ranks[i])};
    for (const replay::MemoryCategory& column : columns)
      row.push_back(bytes(fit.ranks[i].prediction.memory.use.*column.bytes));
    row.push_back(bytes(fit.ranks[i].peak));
    const bool same =
        fit.ranks[i].last && std::equal(row.begin() + 1, row.end(), rows.back().begin() + 1, rows.back().end());
    if (!same) rows.push_back(row);
  }
  return align_columns(rows);
}

// "rank 3 (pp 1) is predicted to hold 1.2 GiB at most", or the total of the ranks of one domain.
std::string format_need(const FitRequest& request, const Fit& fit) {
  if (fit.domain_ranks == 1)
    return concat(rank_name(fit.worst_rank()), " is predicted to hold ", bytes(fit.need), " at most");
  return concat("the ", fit.domain_ranks, " ranks of a ", request.domains.gpu ? "GPU" : "machine",
                " are predicted to hold ", bytes(fit.need), " at most together");
}

std::string format_capacity(const FitRequest& request, const Fit& fit) {
  const char* const place = request.domains.gpu ? "a GPU" : "the machine";
  if (!fit.have) return concat("the memory of ", place, " is not known: give --device-memory");
  return concat(place, request.domains.gpu ? " has " : " has ", bytes(*fit.have), " (", request.domains.from, ")");
}

std::string format_settings(const MemoryOption& option) {
  std::string text;
  for (const std::string& setting : option.settings) text += " --" + setting;
  return text.substr(1);
}

std::string format_option(const MemoryOption& option) {
  return concat("  ", option.what, ": saves ", bytes(option.saves), ", then ", bytes(option.need),
                option.fits ? ", which fits" : ", still too much", "; costs about ", percent(option.cost),
                " of a step\n    ", format_settings(option), "\n");
}

std::string options_text(const MemoryOptions& options) {
  std::string text;
  if (options.single.empty())
    return "no setting of recompute, sharding, microbatch size or offload would save anything\n";
  const bool enough = options.single.front().fits;
  text +=
      enough ? "settings that fit, the cheapest first:\n" : "settings that save most, none of them enough alone:\n";
  if (enough && options.together) text += format_option(*options.together);
  for (const MemoryOption& option : options.single) text += format_option(option);
  if (enough) return text;
  if (options.together)
    text += (options.together->fits ? "together:\n" : "all settings together:\n") + format_option(*options.together);
  if (!options.together || !options.together->fits)
    text += "otherwise use more ranks for tensor and pipeline parallelism, or a smaller model\n";
  return text;
}

// For each exchange type: layers, bytes sent and FLOPs of its first layer. All layers of one type are equal.
std::string exchanges_text(const DryRun& run) {
  std::string out;
  for (const auto& [type, word] : config::kWords<config::CpCommType>) {
    const auto is = [&, wanted = type](const ContextExchange& exchange) { return exchange.exchange == wanted; };
    const auto first = std::find_if(run.exchanges.begin(), run.exchanges.end(), is);
    if (first == run.exchanges.end()) continue;
    out += concat(out.empty() ? "" : "; ", word, " (", std::count_if(run.exchanges.begin(), run.exchanges.end(), is),
                  " layers) sends ", bytes(first->forward_bytes), " forward and ", bytes(first->backward_bytes),
                  " backward next to ", count_text(first->forward_flops), " and ", count_text(first->backward_flops),
                  " operations");
  }
  return concat(out, ", of a layer, microbatch and rank",
                run.request.config.data.reset_attention_mask ? "; keys that no query sees are left out of it" : "");
}

std::string layout_text(const DryRun& run) {
  const config::Config& config = run.request.config;
  const config::Parallel& parallel = config.parallel;
  const std::string vpp = parallel.vpp() > 1 ? concat(" x ", parallel.vpp(), " virtual") : "";
  const std::string experts =
      config.model.has_experts() ? concat(", experts ", parallel.ep(), " x tensor ", parallel.etp()) : "";
  return concat("tensor ", parallel.tp(), parallel.sequence_parallel ? " with sequence" : "", ", pipeline ",
                parallel.pp(), vpp, ", data ", config::data_parallel_size(parallel, run.request.world_size), experts,
                ", sharding ", parallel.data_parallel_sharding_strategy, " (ZeRO-", parallel.sharding().stage(), ")");
}

std::string pipeline_text(const DryRun& run) {
  const PipelineOutlook& pipeline = run.pipeline;
  const config::Config& config = run.request.config;
  std::string text = concat(config.parallel.pipeline_schedule, ", ", pipeline.microbatches, " microbatches of ",
                            config.train.micro_batch_size, ", bubble ",
                            percent(pipeline.bubble_share.value_or(pipeline.formula_bubble_share)));
  if (!pipeline.bubble_share) return text + " by formula (the table is too large to replay)";
  text += concat(" (by formula ", percent(pipeline.formula_bubble_share), ")");
  const auto most = std::max_element(pipeline.live_microbatches.begin(), pipeline.live_microbatches.end());
  return concat(text, ", activations of ", *most, *most == 1 ? " microbatch" : " microbatches", " at most on pp ",
                most - pipeline.live_microbatches.begin());
}

std::string data_text(const DryRun& run, const data::SourceTokens& source) {
  if (!source.problem.empty()) return source.prefix + ": " + source.problem;
  const auto epochs = run.epochs(source);
  char text[64];
  std::snprintf(text, sizeof text, "%.3g epochs", epochs.value_or(0));
  return concat(source.prefix, ": ", count_text(static_cast<double>(source.tokens)), " tokens in ", source.documents,
                source.chats ? " chats" : " documents", " to train on", epochs ? std::string(", ") + text : "");
}

int64_t max_params(const Fit& fit) {
  int64_t most = 0;
  for (const RankFigures& figures : fit.ranks) most = std::max(most, figures.prediction.num_params);
  return most;
}

std::string fit_text(const DryRun& run) {
  const Fit& fit = run.fit;
  std::string text = format_need(run.request, fit) + "; " + format_capacity(run.request, fit);
  if (!fit.have) return text;
  const double share = static_cast<double>(fit.need) / static_cast<double>(std::max<int64_t>(1, *fit.have));
  return concat(text, ": ", share < 2 ? percent(share) : concat(std::llround(share), " times that"),
                fit.fits() ? ", it fits" : ", it cannot fit");
}

std::string schedules_text(const DryRun& run) {
  std::vector<std::vector<std::string>> rows{{"", "bubble", "live microbatches", "memory"}};
  std::string searched;
  for (const ScheduleOutlook& row : run.schedules) {
    const std::vector<double>& live = row.pipeline.live_microbatches;
    std::string name;
    for (const std::string& setting : row.settings) {
      const std::string key = setting.substr(setting.find('.') + 1);
      if (key.starts_with("pipeline_times")) searched += concat("  for ", name, ": ", key, "\n");
      else name += (name.empty() ? "" : " ") + key;
    }
    rows.push_back({name, percent(row.pipeline.bubble_share.value_or(row.pipeline.formula_bubble_share)),
                    live.empty() ? "unknown" : concat(*std::max_element(live.begin(), live.end())), bytes(row.need)});
  }
  return "pipeline schedules, as keys of the section parallel\n" + align_columns(rows) + searched;
}

}  // namespace

std::string text(const DryRun& run) {
  const auto as_double = [](int64_t value) { return static_cast<double>(value); };
  std::vector<std::pair<std::string, std::string>> lines = {
      {"layout",
       concat(run.request.world_size, run.request.world_size == 1 ? " rank: " : " ranks: ", layout_text(run))},
      {"parameters", concat(count_text(as_double(run.num_params)), " in all, ",
                            count_text(as_double(max_params(run.fit))), " a rank at most")},
      {"operations", concat(count_text(run.step_flops), " a step (", count_text(run.model_flops), " by formula), ",
                            count_text(run.step_flops / as_double(run.step_tokens)), " a token")},
      {"pipeline", pipeline_text(run)},
      {"tokens", concat(count_text(as_double(run.step_tokens)), " a step, ", run.length.iterations, " steps, ",
                        count_text(as_double(run.all_tokens())), " in all")}};
  if (!run.exchanges.empty()) lines.insert(lines.begin() + 3, {"attention", exchanges_text(run)});
  if (run.active_params > 0) {
    lines.insert(lines.begin() + 3,
                 {"experts", concat(count_text(as_double(run.active_params)), " parameters take part for a token, ",
                                    count_text(run.token_flops_active), " operations by formula; with all of them ",
                                    count_text(run.token_flops_all))});
  }
  for (const data::SourceTokens& source : run.sources) lines.push_back({"data", data_text(run, source)});
  for (const std::string& note : run.notes) lines.push_back({"note", note});
  std::string out = "dry run of " + run.request.config.run.name + ": nothing was started or written\n";
  for (const auto& [name, value] : lines) out += "  " + name + std::string(12 - name.size(), ' ') + value + "\n";
  out += "memory\n" + memory_table(run.fit) + "  " + fit_text(run) + "\n";
  if (run.request.domains.gpu) out += "  (without CUDA's context, the allocator's gaps and NCCL's buffers)\n";
  if (!run.schedules.empty()) out += schedules_text(run);
  if (run.memory_options) out += options_text(*run.memory_options);
  return run.refused.empty() ? out : out + "a start would be refused: " + run.refused + "\n";
}

std::vector<std::string> summary(const FitRequest& request, const Fit& fit, int64_t most, const Predictor& predict) {
  const config::Config& config = request.config;
  const RankPrediction model = whole_model(request, predict);
  const int64_t microbatches = max_microbatches(config, request.world_size);
  const int64_t samples =
      microbatches * config.train.micro_batch_size * config::data_parallel_size(config.parallel, request.world_size);
  const double tokens = static_cast<double>(samples * config.train.seq_length);
  std::vector<std::string> lines;
  const int64_t idle = plan::idle_parameters(plan::model_shape(config, request.vocab_size));
  const std::string active =
      idle == 0 ? "" : concat(" (", count_text(static_cast<double>(model.num_params - idle)), " for a token)");
  lines.push_back(concat(" model: ", count_text(static_cast<double>(model.num_params)), " parameters", active, ", ",
                         count_text(static_cast<double>(max_params(fit))), " a rank; ",
                         count_text(model.model_flops * static_cast<double>(samples)),
                         " operations by formula a step of ", count_text(tokens), " tokens"));
  if (config.parallel.pp() > 1) {
    lines.push_back(concat(" pipeline: ", config.parallel.pipeline_schedule, ", ", microbatches,
                           " microbatches, bubble ", percent(formula_bubble_share(config, microbatches)),
                           " by formula"));
  }
  const std::string others = most > fit.need ? concat(" (elsewhere up to ", bytes(most), ")") : "";
  lines.push_back(" memory: " + format_need(request, fit) + others + "; " + format_capacity(request, fit));
  return lines;
}

std::string refusal(const FitRequest& request, const Fit& fit, const MemoryOptions& options) {
  return concat("this run cannot fit: ", format_need(request, fit), ", and ", format_capacity(request, fit), "\n",
                memory_table(fit), options_text(options),
                "set memory.check_fit = warn to start it anyway; metroplex train --dry-run shows details");
}

}  // namespace metroplex::forecast
