#include "expert_plan.h"

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <sstream>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "files/file_system.h"
#include "plan/echo_parts.h"

namespace metroplex::apps {
namespace {

using Json = nlohmann::json;
using base::concat;

Json parse_counts(const std::string& text, const std::string& where) {
  Json json = Json::parse(text, nullptr, false);
  MPX_CHECK(!json.is_discarded(), "data", where,
            ": is not JSON; give counts like [[4,0,1],[2,2,2]], a list per rank");
  if (json.is_object() && json.contains("counts")) json = json.at("counts");
  return json;
}

std::string rank_row(const char* format, int rank, int64_t a, int64_t b, int64_t c, int64_t d) {
  char line[128];
  std::snprintf(line, sizeof line, format, rank, static_cast<long long>(a), static_cast<long long>(b),
                static_cast<long long>(c), static_cast<long long>(d));
  return line;
}

std::string slot_name(const plan::EchoSizes& sizes, int slot) {
  return concat("rank ", sizes.rank_of_replica(slot), " slot ", slot % sizes.slots);
}

int64_t spill_of_rank(const ExpertPlanReport& report, int rank) {
  const plan::EchoSizes& sizes = report.plan.sizes;
  const auto first = report.spill.begin() + rank * sizes.home_experts();
  return std::accumulate(first, first + sizes.home_experts(), int64_t{0});
}

std::string replica_lines(const ExpertPlanReport& report) {
  const plan::EchoPlan& plan = report.plan;
  std::string text = concat("\nreplicas: ", plan.num_replicas(), " in ", plan.sizes.replicas(), " slots\n");
  for (int slot = 0; slot < plan.sizes.replicas(); ++slot) {
    const int32_t expert = plan.owner[static_cast<size_t>(slot)];
    if (expert < 0) continue;
    text += concat("  ", slot_name(plan.sizes, slot), ": expert ", expert, " of rank ", plan.sizes.home(expert), ", ",
                   plan.rows[static_cast<size_t>(slot)], " rows; by source rank:");
    for (int rank = 0; rank < plan.sizes.ranks; ++rank) text += concat(" ", plan.from(rank, slot));
    text += "\n";
  }
  return text;
}

std::string reroute_lines(const ExpertPlanReport& report) {
  const plan::EchoPlan& plan = report.plan;
  std::string text = "\nrouting of experts with replicas: rows of each source rank\n";
  for (int rank = 0; rank < plan.sizes.ranks; ++rank) {
    for (int expert = 0; expert < plan.sizes.experts; ++expert) {
      int64_t left = report.counts[static_cast<size_t>(rank * plan.sizes.experts + expert)];
      std::string to;
      for (int slot = 0; slot < plan.sizes.replicas(); ++slot) {
        const int64_t rows = plan.owner[static_cast<size_t>(slot)] == expert ? plan.from(rank, slot) : 0;
        if (rows > 0) to += concat(", ", rows, " to ", slot_name(plan.sizes, slot));
        left -= rows;
      }
      if (!to.empty())
        text +=
            concat("  rank ", rank, ", expert ", expert, ": ", left, " to rank ", plan.sizes.home(expert), to, "\n");
    }
  }
  return text;
}

}  // namespace

std::vector<std::vector<int64_t>> read_expert_counts(const std::string& text_or_path, int line) {
  std::string text = text_or_path, where = "--plan";
  bool dumped = false;
  const size_t first = text.find_first_not_of(" \t\n");
  if (first == std::string::npos || (text[first] != '[' && text[first] != '{')) {
    where = concat("--plan ", text_or_path);
    std::istringstream lines(files::PosixFileSystem().read(text_or_path));
    text = lines.str();
    dumped = text.find("\"counts\"") != std::string::npos;
    if (dumped) {
      for (int skip = -1; skip < line; ++skip)
        MPX_CHECK(std::getline(lines, text), "data", where, ": has no line ", line, "; choose a smaller --line");
    }
  }
  MPX_CHECK(dumped || line == 0, "config", "--line ", line,
            ": is for a file of model.moe_echo_dump_dir; leave it out");
  const Json json = parse_counts(text, where);
  for (const Json& of_rank : json) {
    for (const Json& count : of_rank)
      MPX_CHECK(!count.is_number_float(), "data", where, ": ", count.dump(), " is not an integer; give row counts");
  }
  std::vector<std::vector<int64_t>> counts;
  try {
    counts = json.get<std::vector<std::vector<int64_t>>>();
  } catch (const Json::exception&) {
    base::throw_error("data", where + ": must be a list per rank of counts per expert, like [[4,0,1],[2,2,2]]");
  }
  MPX_CHECK(counts.size() > 1 && !counts[0].empty() && counts[0].size() % counts.size() == 0, "data", where, ": has ",
            counts.size(), " ranks and ", counts.empty() ? 0 : counts[0].size(),
            " experts; give at least 2 ranks, and experts that they divide evenly");
  constexpr int64_t kMost = int64_t{1} << 40;
  for (const auto& of_rank : counts) {
    MPX_CHECK(of_rank.size() == counts[0].size(), "data", where, ": ranks have counts of ", counts[0].size(), " and ",
              of_rank.size(), " experts; give the same number for each rank");
    for (const int64_t count : of_rank)
      MPX_CHECK(count >= 0 && count <= kMost, "data", where, ": ", count, " is not a row count; give 0 to ", kMost);
  }
  return counts;
}

ExpertPlanReport make_expert_plan(const std::vector<std::vector<int64_t>>& counts, int slots,
                                  const plan::EchoOptions& options) {
  ExpertPlanReport report;
  for (const auto& of_rank : counts) report.counts.insert(report.counts.end(), of_rank.begin(), of_rank.end());
  const plan::EchoSizes sizes{static_cast<int>(counts.size()), static_cast<int>(counts[0].size()), slots};
  plan::EchoWorkspace work;
  plan_echo({report.counts.data(), sizes}, options, work, report.plan);
  report.loads = work.loads;
  plan::echo_spills({sizes, options, work});
  report.spare = work.spare;
  report.spill = work.spill;
  return report;
}

std::string to_text(const ExpertPlanReport& report) {
  const plan::EchoPlan& plan = report.plan;
  const int64_t total = std::accumulate(report.loads.begin(), report.loads.end(), int64_t{0});
  const int64_t most = std::max<int64_t>(1, *std::max_element(report.loads.begin(), report.loads.end()));
  std::string text = concat(total, " rows to ", plan.sizes.experts, " experts on ", plan.sizes.ranks, " ranks, mean ",
                            total / plan.sizes.ranks, "\n  rank      load     spill     spare     after\n");
  for (int rank = 0; rank < plan.sizes.ranks; ++rank) {
    const auto r = static_cast<size_t>(rank);
    text += rank_row("%6d %9lld %9lld %9lld %9lld  ", rank, report.loads[r], spill_of_rank(report, rank),
                     report.spare[r], plan.final_loads[r]);
    constexpr int64_t kBar = 40;
    for (int64_t i = 0; i < kBar; ++i) {
      const bool before = i < report.loads[r] * kBar / most, after = i < plan.final_loads[r] * kBar / most;
      text += after ? (before ? '#' : '+') : (before ? '-' : ' ');
    }
    text.erase(text.find_last_not_of(' ') + 1);
    text += "\n";
  }
  text += "  # stays, - is sent to a replica on another rank, + is received by a replica here\n";
  return text + replica_lines(report) + reroute_lines(report);
}

std::string to_json_text(const ExpertPlanReport& report) {
  const plan::EchoPlan& plan = report.plan;
  Json replicas = Json::array();
  for (int slot = 0; slot < plan.sizes.replicas(); ++slot) {
    if (plan.owner[static_cast<size_t>(slot)] < 0) continue;
    Json sources;
    for (int rank = 0; rank < plan.sizes.ranks; ++rank) sources.push_back(plan.from(rank, slot));
    replicas.push_back({{"rank", plan.sizes.rank_of_replica(slot)},
                        {"slot", slot % plan.sizes.slots},
                        {"expert", plan.owner[static_cast<size_t>(slot)]},
                        {"rows", plan.rows[static_cast<size_t>(slot)]},
                        {"rows_by_source_rank", sources}});
  }
  return Json{{"loads", report.loads},
              {"spare", report.spare},
              {"spill", report.spill},
              {"replicas", replicas},
              {"final_loads", plan.final_loads}}
             .dump(2) +
         "\n";
}

std::string to_svg(const ExpertPlanReport& report) {
  const int64_t most = std::max<int64_t>(1, *std::max_element(report.loads.begin(), report.loads.end()));
  constexpr int kWidth = 400, kRow = 34, kLeft = 70;
  std::string rows;
  for (size_t rank = 0; rank < report.loads.size(); ++rank) {
    const int64_t y = 10 + static_cast<int64_t>(rank) * kRow;
    rows += concat("<text x=\"8\" y=\"", y + 17, "\">rank ", rank, "</text>\n");
    const auto bar = [&](int64_t at, int64_t load, const char* color) {
      rows += concat("<rect x=\"", kLeft, "\" y=\"", at, "\" width=\"", load * kWidth / most,
                     "\" height=\"12\" fill=\"", color, "\"/><text x=\"", kLeft + load * kWidth / most + 4, "\" y=\"",
                     at + 11, "\">", load, "</text>\n");
    };
    bar(y, report.loads[rank], "#c44");
    bar(y + 14, report.plan.final_loads[rank], "#48a");
  }
  const int64_t height = 30 + static_cast<int64_t>(report.loads.size()) * kRow;
  return concat("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"560\" height=\"", height,
                "\" font-family=\"sans-serif\" font-size=\"12\">\n", rows, "<text x=\"", kLeft, "\" y=\"", height - 8,
                "\">rows per rank: red = without replicas, blue = with replicas</text>\n</svg>\n");
}

}  // namespace metroplex::apps
