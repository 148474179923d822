#include "run/metrics.h"

#include <charconv>
#include <cmath>
#include <cstdarg>
#include <ctime>
#include <optional>

#include "base/error.h"
#include "files/tensorboard.h"

namespace metroplex::run {
namespace {

__attribute__((format(printf, 1, 2))) std::string format(const char* pattern, ...) {
  char buffer[256];
  va_list args;
  va_start(args, pattern);
  std::vsnprintf(buffer, sizeof buffer, pattern, args);
  va_end(args);
  return buffer;
}

std::string timestamp() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  char buffer[32];
  std::strftime(buffer, sizeof buffer, "%Y-%m-%d %H:%M:%S", &local);
  return buffer;
}

// Returns the shortest text that reads back to the same double. JSON has no NaN or Inf.
std::string json_number(double value) {
  if (!std::isfinite(value)) return "null";
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value);
  return {buffer, end.ptr};
}

using Numbers = std::vector<std::pair<std::string, double>>;

Numbers metric_values(const ExpertMetrics& m) {
  Numbers numbers{{"steps", static_cast<double>(m.steps)},
                  {"tokens min", m.least},
                  {"tokens p10", m.p10},
                  {"tokens p50", m.p50},
                  {"tokens p90", m.p90},
                  {"tokens max", m.most},
                  {"experts max over mean", m.experts.together},
                  {"experts max over mean of a step", m.experts.mean},
                  {"experts max over mean of the worst step", m.experts.worst},
                  {"ranks max over mean", m.ranks.together},
                  {"ranks max over mean of a step", m.ranks.mean},
                  {"ranks max over mean of the worst step", m.ranks.worst},
                  {"dropped", m.dropped},
                  {"dispatch ms", m.dispatch_ms},
                  {"combine ms", m.combine_ms}};
  if (m.replicas) {
    const ReplicaMetrics& replica = *m.replicas;
    numbers.insert(numbers.end(), {{"clones", replica.replicas},
                                   {"ranks max over mean without clones", replica.before},
                                   {"ranks max over mean with clones", replica.after},
                                   {"ranks max over mean with clones, worst", replica.worst},
                                   {"clones ms", replica.ms}});
  }
  return numbers;
}

std::string json_text(const std::vector<ExpertMetrics>& layers) {
  std::string list;
  for (const ExpertMetrics& m : layers) {
    list += (list.empty() ? "[{\"layer\": " : ", {\"layer\": ") + std::to_string(m.layer);
    for (const auto& [name, value] : metric_values(m)) list += ", \"" + name + "\": " + json_number(value);
    list += "}";
  }
  return list + "]";
}

Numbers collect_scalars(const std::vector<ExpertMetrics>& layers) {
  Numbers all;
  for (const ExpertMetrics& m : layers) {
    for (const auto& [name, value] : metric_values(m))
      all.emplace_back(format("experts/layer %ld/", m.layer) + name, value);
  }
  return all;
}

// Shares are of all elements. The error is relative: ||rounded - x|| / ||x||. "scale" is the smallest factor of a
// whole tensor or expert from values to codes; with NVFP4, to codes times the factors of blocks (2688 / amax).
// Power-of-two factors of blocks follow from amax alone and are not reported.
Numbers metric_values(const kernels::RoundingFigures& m) {
  Numbers numbers{{"amax", m.largest},
                  {"saturated", m.saturated / m.elements},
                  {"flushed", m.flushed / m.elements},
                  {"nonfinite", m.nonfinite / m.elements},
                  {"error", std::sqrt(m.squared_error / m.squares)}};
  if (m.decode > 0) numbers.emplace_back("scale", 1 / m.decode);
  return numbers;
}

std::string json_text(const std::vector<step::LayerRounding>& layers) {
  std::string all;
  for (const step::LayerRounding& layer : layers) {
    all += (all.empty() ? "{\"" : ", \"") + layer.module + "\": {";
    for (size_t i = 0; i < layer.operands.size(); ++i) {
      all += base::concat(i == 0 ? "" : ", ", "\"", step::kOperandNames[i], "\": {");
      std::string values;
      for (const auto& [name, value] : metric_values(layer.operands[i]))
        values += (values.empty() ? "\"" : ", \"") + name + "\": " + json_number(value);
      all += values + "}";
    }
    all += "}";
  }
  return all + "}";
}

Numbers collect_scalars(const std::vector<step::LayerRounding>& layers) {
  Numbers all;
  for (const step::LayerRounding& layer : layers) {
    for (size_t i = 0; i < layer.operands.size(); ++i) {
      for (const auto& [name, value] : metric_values(layer.operands[i])) {
        if (std::isfinite(value))
          all.emplace_back(base::concat("rounding/", layer.module, "/", step::kOperandNames[i], "/", name), value);
      }
    }
  }
  return all;
}

}  // namespace

std::string format_duration(double seconds) {
  const int64_t s = std::isfinite(seconds) ? std::max<int64_t>(0, std::llround(seconds)) : 0;
  if (s >= 3600) return format("%ld:%02ld:%02ld", s / 3600, s / 60 % 60, s % 60);
  return format("%ld:%02ld", s / 60, s % 60);
}

std::string iteration_line(const IterationMetrics& m) {
  const StepMetrics& last = m.last;
  const step::StepOutcome& outcome = last.outcome;
  std::string line = format(" [%s] iteration %8ld/%8ld |", timestamp().c_str(), last.iteration, m.train_iters);
  line += format(" consumed samples: %12ld |", last.consumed_samples);
  line += format(" elapsed time per iteration (ms): %.1f |", m.elapsed_ms_per_iteration);
  line += format(" throughput per GPU (TFLOP/s/GPU): %.3f |", m.tflops_per_rank);
  line += format(" learning rate: %.6E |", outcome.lr);
  line += format(" global batch size: %5ld |", last.global_batch_size);
  if (std::isnan(m.lm_loss)) line += " lm loss: nan |";  // printf would print the sign of a NaN
  else if (m.lm_loss != 0)
    line += format(" lm loss: %.6E |", m.lm_loss);  // 0: all steps of the interval were skipped
  for (const auto& [name, value] : m.terms) line += " " + name + format(": %.6E |", value);
  line += format(" loss scale: %.1f |", outcome.loss_scale);
  if (std::isfinite(outcome.grad_norm)) line += format(" grad norm: %.3f |", outcome.grad_norm);
  if (outcome.num_zeros >= 0) line += format(" num zeros: %ld |", outcome.num_zeros);
  if (last.params_norm >= 0) line += format(" params norm: %.3f |", last.params_norm);
  line += format(" number of skipped iterations: %3ld |", m.skipped_iterations);
  line += format(" number of nan iterations: %3ld |", m.nan_iterations);
  line += format(" tokens/s: %.1f |", m.tokens_per_second);
  line += " remaining: " + format_duration(m.remaining_seconds) + " |";
  return line;
}

std::vector<std::string> expert_lines(const std::vector<ExpertMetrics>& layers) {
  const int64_t steps = layers.empty() ? 1 : layers[0].steps;
  std::vector<std::string> lines{
      format(" %-57s| experts, max / mean     | ranks, max / mean       | dropped | slowest rank, ms",
             format("experts: tokens of an expert, mean of %ld step%s", steps, steps == 1 ? "" : "s").c_str()),
      " layer      min      p10      p50      p90      max       | overall a step  worst   | overall a step  worst   "
      "|"
      "         | dispatch  combine"};
  for (const ExpertMetrics& m : layers) {
    std::string line =
        format(" %5ld %8.0f %8.0f %8.0f %8.0f %8.0f       |", m.layer, m.least, m.p10, m.p50, m.p90, m.most);
    for (const files::Imbalance& of : {m.experts, m.ranks})
      line += format(" %7.3f %7.3f %7.3f |", of.together, of.mean, of.worst);
    line += format(" %6.2f%% | %8.2f %8.2f", 100 * m.dropped, m.dispatch_ms, m.combine_ms);
    lines.push_back(line);
  }
  if (std::none_of(layers.begin(), layers.end(), [](const ExpertMetrics& m) { return m.replicas.has_value(); }))
    return lines;
  lines.push_back(" clones: rows of a rank, max / mean, means of the plans");
  lines.push_back(" layer   clones  without     with    worst | slowest rank waits, ms a step");
  for (const ExpertMetrics& m : layers) {
    if (!m.replicas) continue;
    lines.push_back(format(" %5ld %8.1f %8.3f %8.3f %8.3f | %8.2f", m.layer, m.replicas->replicas, m.replicas->before,
                           m.replicas->after, m.replicas->worst, m.replicas->ms));
  }
  return lines;
}

std::string evaluation_line(const EvaluationMetrics& m) {
  return format(" %s loss at iteration %ld on %s set | lm loss value: %.6E | lm loss PPL: %.6E | ", m.split.c_str(),
                m.iteration, m.split.c_str(), m.lm_loss, std::exp(std::min(20.0, m.lm_loss)));
}

// Prefix of every line of the metrics file.
constexpr std::string_view kIterationKey = "{\"iteration\": ";

void check_metrics_file(files::FileSystem& disk, const std::string& path) {
  if (path.empty() || disk.file_size(path).value_or(0) == 0) return;
  MPX_CHECK(disk.map(path).text().starts_with(kIterationKey), "files", "train.metrics_file = ", path,
            " exists and is not a metrics file; choose another path, or move that file away");
}

struct Metrics::Sinks {
  base::Log& log;
  std::optional<files::TensorBoardWriter> tensorboard = {};
  std::unique_ptr<files::WritableFile> json = {};
  int64_t tensorboard_interval = 1;
  files::FileSystem* disk = nullptr;  // unset after a failure, and without a metrics file
  std::string description_path = {}, description = {};

  void failed(const base::Error& error) {
    log.warn(base::concat(error.what(), "; training continues without this file"));
  }
  void scalars(int64_t step, const std::vector<std::pair<std::string, double>>& values) {
    if (!tensorboard) return;
    try {
      tensorboard->add_scalars(step, values);
    } catch (const base::Error& error) {
      failed(error);
      tensorboard.reset();
    }
  }
  void line(const std::string& text) {
    if (json == nullptr) return;
    try {
      json->write(text + "\n");
    } catch (const base::Error& error) {
      failed(error);
      json.reset();
    }
  }
};

Metrics::Metrics(const config::Train& config, files::FileSystem& disk, base::Log& log) : sinks_(new Sinks{log}) {
  sinks_->tensorboard_interval = config.tensorboard_log_interval;
  if (!config.tensorboard_dir.empty()) sinks_->tensorboard.emplace(disk, config.tensorboard_dir);
  if (config.metrics_file.empty()) return;
  try {
    sinks_->json = disk.append(config.metrics_file);
    sinks_->disk = &disk;
    sinks_->description_path = config.metrics_file + ".run";
  } catch (const base::Error& error) {
    base::throw_error("config", base::concat("cannot write train.metrics_file '", config.metrics_file, "' (",
                                             error.what(), "); choose another path"));
  }
}

Metrics::~Metrics() = default;

void Metrics::describe(const std::string& line) {
  if (sinks_->disk == nullptr) return;
  sinks_->description += line + "\n";
  try {
    sinks_->disk->replace_file(sinks_->description_path, sinks_->description);
  } catch (const base::Error& error) {
    sinks_->failed(error);
    sinks_->disk = nullptr;
  }
}

void Metrics::iteration(const IterationMetrics& m) { sinks_->log.info(iteration_line(m)); }

void Metrics::step(const StepMetrics& m) {
  const step::StepOutcome& outcome = m.outcome;
  std::vector<std::pair<std::string, double>> values{
      {"lm loss", outcome.loss},          {"learning-rate", outcome.lr},
      {"grad-norm", outcome.grad_norm},   {"batch-size", static_cast<double>(m.global_batch_size)},
      {"loss-scale", outcome.loss_scale}, {"iteration-time", m.seconds},
      {"throughput", m.tflops_per_rank},  {"tokens-per-second", m.tokens_per_second}};
  for (const auto& [name, value] : outcome.terms) values.emplace_back(name, value);
  if (outcome.num_zeros >= 0) values.emplace_back("num-zeros", static_cast<double>(outcome.num_zeros));
  if (m.params_norm >= 0) values.emplace_back("params-norm", m.params_norm);
  std::string line(kIterationKey);
  line += format("%ld, \"consumed_samples\": %ld", m.iteration, m.consumed_samples);
  for (const auto& [tag, value] : values) line += ", \"" + tag + "\": " + json_number(value);
  if (!m.experts.empty()) line += ", \"experts\": " + json_text(m.experts);
  if (!m.rounding.empty()) line += ", \"rounding\": " + json_text(m.rounding);
  sinks_->line(line + (outcome.updated ? "}" : ", \"skipped\": true}"));
  for (const std::string& of_experts : m.experts.empty() ? std::vector<std::string>{} : expert_lines(m.experts))
    sinks_->log.info(of_experts);
  if (!m.experts.empty()) sinks_->scalars(m.iteration, collect_scalars(m.experts));
  if (!m.rounding.empty()) sinks_->scalars(m.iteration, collect_scalars(m.rounding));
  if (m.iteration % sinks_->tensorboard_interval != 0) return;
  std::erase_if(values, [](const auto& entry) { return !std::isfinite(entry.second); });  // a gap, not a zero
  sinks_->scalars(m.iteration, values);
}

void Metrics::evaluation(const EvaluationMetrics& m) {
  const std::string line = evaluation_line(m);
  const std::string rule(line.size(), '-');
  sinks_->log.info(rule);
  sinks_->log.info(line);
  sinks_->log.info(rule);
  sinks_->scalars(m.iteration, {{"lm loss " + m.split, m.lm_loss},
                                {"lm loss " + m.split + " ppl", std::exp(std::min(20.0, m.lm_loss))}});
  sinks_->line(std::string(kIterationKey) +
               format("%ld, \"consumed_samples\": %ld, \"split\": \"%s\", \"lm loss\": ", m.iteration,
                      m.consumed_samples, m.split.c_str()) +
               json_number(m.lm_loss) + "}");
}

void Metrics::slowest(const SlowestRank& slowest) {
  sinks_->log.info(" slowest " + slowest.text);
  sinks_->line(base::concat("{\"slowest\": {\"from\": ", slowest.from, ", \"to\": ", slowest.to,
                            ", \"rank\": ", slowest.rank, ", \"why\": \"", slowest.why, "\", \"seconds\": ",
                            json_number(slowest.seconds), ", \"text\": \"", slowest.text, "\"}}"));
}

void Metrics::times(const StepComparison& comparison) {
  sinks_->log.info(to_string(comparison));
  std::string predicted, measured;
  for (const PartTime& part : comparison.parts) {
    const std::string key = (predicted.empty() ? "\"" : ", \"") + part.name + "\": ";
    predicted += key + json_number(part.predicted);
    measured += key + json_number(part.measured);
  }
  sinks_->line(base::concat("{\"time\": {\"iteration\": ", comparison.iteration, ", \"steps\": ", comparison.steps,
                            ", \"rank\": ", comparison.rank, ", \"predicted\": {", predicted, "}, \"measured\": {",
                            measured, "}}}"));
}

}  // namespace metroplex::run
