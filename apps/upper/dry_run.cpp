#include "upper/dry_run.h"

#include <algorithm>
#include <cmath>
#include <iostream>

#include "base/error.h"
#include "base/free_memory.h"
#include "config/attention.h"
#include "config/load.h"
#include "device/device.h"
#include "data/build.h"
#include "files/file_system.h"
#include "numbers.h"
#include "program.h"
#include "forecast/dry_run.h"
#include "run/start_check.h"
#include "run/run_data.h"
#include "run/run_lines.h"
#include "step/run_length.h"
#include "upper/launch.h"
#include "upper/run_tokenizer.h"

namespace metroplex::apps {
namespace {

constexpr double kGiB = 1073741824;

// Returns the memory of each domain of `placing`, as configured or as detected on this machine.
forecast::MemoryDomains find_memory_domains(const config::Config& config, const RankPlacing& placing,
                                            int64_t world_size) {
  forecast::MemoryDomains domains;
  domains.gpu = placing.gpu;
  domains.ranks_each = placing.gpu ? (placing.shared ? world_size : 1) : placing.local_ranks;
  if (!placing.launcher.empty()) domains.only = placing.rank;
  if (config.memory.device_memory_gib > 0) {
    domains.bytes = std::llround(config.memory.device_memory_gib * kGiB);
    domains.from = "memory.device_memory_gib";
  } else if (placing.gpu) {
    if (const int64_t total = device::total_memory(); total > 0) domains.bytes = total;
    domains.from = "all of the first one here";
  } else if (const auto found = base::free_memory()) {
    domains.bytes = found->bytes;
    domains.from = "free, by " + found->from;
  }
  return domains;
}

// Parses "80GiB", "0.5TB", or a number of GiB.
double parse_gib(const std::string& text) {
  static constexpr struct {
    const char* name;
    double bytes;
  } kUnits[] = {{"MiB", 1048576}, {"GiB", kGiB}, {"TiB", 1024 * kGiB}, {"MB", 1e6}, {"GB", 1e9},
                {"TB", 1e12},     {"", kGiB}};
  const size_t letters = std::min(text.find_last_of("0123456789.") + 1, text.size());
  for (const auto& unit : kUnits) {
    if (text.substr(letters) == unit.name)
      return real_number("--device-memory", text.substr(0, letters)) * unit.bytes / kGiB;
  }
  throw base::Error(
      "config", "--device-memory '" + text + "' is not a size; write it like 80GiB, or with MiB, TiB, MB, GB or TB");
}

// If the config has the vocabulary size, a tokenizer that cannot be read only gives a note.
run::TokenizerFacts read_tokenizer(config::Config& config, std::vector<std::string>& notes) {
  if (config.model.vocab_size == 0) return tokenizer_facts(config);
  try {
    return tokenizer_facts(config);
  } catch (const base::Error& error) {
    if (error.room() == "config") throw;
    notes.push_back(std::string("the tokenizer was not checked: ") + base::message_of(error));
    run::TokenizerFacts facts;
    facts.vocab_size = config.model.vocab_size;
    return facts;
  }
}

// Returns the reason why the samples cannot be ordered on this machine; "" if they can, or if this machine lacks the
// data.
std::string order_problem(const forecast::DryRun& run, const run::TokenizerFacts& tokenizer,
                          files::FileSystem& disk) {
  for (const data::SourceTokens& source : run.sources) {
    if (!source.problem.empty()) return "";
  }
  const config::Config& config = run.request.config;
  return data::order_problem(config.data, run::build_options(config, run.length, tokenizer, false), disk);
}

// Returns the warnings that the run would log; none if this machine lacks the data.
std::vector<std::string> start_warnings(const forecast::DryRun& run, int64_t eod, files::FileSystem& disk) {
  for (const data::SourceTokens& source : run.sources) {
    if (!source.problem.empty()) return {};
  }
  return run::start_warnings(run.request.config, eod, disk);
}

void print(const forecast::DryRun& run, const TrainFlags& flags) {
  if (flags.json) {
    std::cout << forecast::json(run) << "\n";
    return;
  }
  if (flags.print_config) std::cout << config::dump(run.request.config) << "\n";
  std::cout << forecast::text(run);
}

}  // namespace

std::vector<CommandFlag> TrainFlags::own_flags() {
  return {{.name = "--dry-run", .given = &dry_run},     {.name = "--json", .given = &json},
          {.name = "--schedules", .given = &schedules}, {.name = "--print-config", .given = &print_config},
          {.name = "--quiet", .given = &quiet},         {.name = "--device-memory", .value = &device_memory}};
}

void TrainFlags::take_into(config::Config& config) const {
  MPX_CHECK(dry_run || !json, "config", "--json requires --dry-run; give both, or neither");
  MPX_CHECK(dry_run || !schedules, "config", "--schedules requires --dry-run; give both, or neither");
  if (!device_memory.empty()) config.memory.device_memory_gib = parse_gib(device_memory);
}

int run_dry(const RunArguments& parsed, const config::Config& given, const TrainFlags& flags) {
  config::Config config = given;
  const int64_t world_size = planned_world_size(config.run);
  std::vector<std::string> notes = parsed.notes;
  const run::TokenizerFacts tokenizer = read_tokenizer(config, notes);
  config = checked_with_epochs(config, world_size);
  if (config.run.deterministic_mode) make_deterministic();  // deterministic operators use different amounts of memory
  const RankPlacing placing = requested_placing(config.run, world_size);
  if (placing.rank != 0) return kExitOk;
  use_threads_of_rank(config.run, placing.local_ranks);
  files::PosixFileSystem disk;
  forecast::DryRun run = forecast::dry_run(
      {config, static_cast<int>(world_size), tokenizer.vocab_size, find_memory_domains(config, placing, world_size)},
      disk);
  if (flags.schedules) run.schedules = forecast::compare_schedules(run);
  run.notes.insert(run.notes.begin(), notes.begin(), notes.end());
  if (config.run.device == config::Device::automatic && !placing.gpu && placing.launcher.empty() && world_size > 1)
    run.notes.push_back(
        "run.device is auto and this machine has no GPUs for these ranks: all of them run on its CPU; "
        "give --run.device=cuda for GPUs");
  const std::string attention = config::own_attention(config, device::compute_capability());
  if (placing.gpu && !attention.empty()) run.notes.push_back(attention);
  std::optional<base::Error> refused;
  try {
    const std::string order = order_problem(run, tokenizer, disk);
    MPX_CHECK(order.empty() || placing.gpu, "config", order);
    if (!order.empty()) run.notes.push_back("on a machine like this one, " + order);
    run::check_start(config, tokenizer, world_size, disk);
    for (const std::string& warning : start_warnings(run, tokenizer.eod, disk)) run.notes.push_back(warning);
  } catch (const base::Error& error) {
    refused = error;
    run.refused = error.what();
  }
  print(run, flags);
  std::cout.flush();
  MPX_CHECK(run.fits(), "config", "this run cannot fit");
  if (refused) throw *refused;
  return kExitOk;
}

StartCheck::StartCheck(const config::Config& config, int64_t world_size, int64_t vocab_size, base::Log& log)
    : log_(log) {
  request_ = {config, static_cast<int>(world_size), vocab_size, {}};
  if (config.memory.check_fit == config::FitCheck::off) return;
  const RankPlacing placing = planned_placing(config.run, world_size);
  request_.domains = find_memory_domains(config, placing, world_size);
  const bool ours = placing.launcher == "metroplex";
  if (ours && placing.rank != 0) return;
  use_threads_of_rank(config.run, placing.local_ranks);
  fit_ = forecast::fit(request_);
  together_ = !placing.launcher.empty() && !ours;
  if (together_ || ours || fit_.fits()) return;
  MPX_CHECK(config.memory.check_fit == config::FitCheck::warn, "config", refusal());
  log.warn(refusal());
}

std::string StartCheck::refusal() const {
  return forecast::refusal(request_, fit_, forecast::memory_options(request_, fit_));
}

bool StartCheck::on_rank(const comm::World& world) {
  const config::FitCheck check = request_.config.memory.check_fit;
  if (check == config::FitCheck::off) return true;
  run::StartFit start_fit{fit_.need, -1};
  if (together_) {
    start_fit = run::check_fit_together(
        fit_, world, [this] { return refusal(); }, [this](const std::string& text) { log_.warn(text); });
    if (start_fit.misfit_rank >= 0 && check == config::FitCheck::refuse) {
      refused_by_ = start_fit.misfit_rank;
      return false;
    }
  }
  if (world.rank() != 0) return true;
  for (const std::string& line : forecast::summary(request_, fit_, start_fit.need)) log_.info(line);
  return true;
}

void StartCheck::throw_refusal() const {
  MPX_CHECK(refused_by_ < 0, "config", "this run cannot fit: rank ", refused_by_,
            " reports the reason; memory.check_fit = warn starts it anyway");
}

}  // namespace metroplex::apps
