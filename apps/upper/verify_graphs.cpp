// metroplex verify --cuda-graphs: checks without a GPU whether the steps of the user's config can be captured.
#include "upper/verify_graphs.h"

#include <cstdio>

#include "tape_check/tape_findings.h"
#include "program.h"
#include "run_config.h"
#include "verify/graph_check.h"
#include "verify/verify.h"
#include "upper/launch.h"

namespace metroplex::apps {
namespace {

size_t print(const std::string& who, const std::vector<tape_check::Finding>& found) {
  const std::string text = tape_check::report(found);
  size_t lines = 0;
  for (size_t begin = 0, end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1, ++lines)
    std::printf("%s%.*s\n", who.c_str(), static_cast<int>(end - begin), text.data() + begin);
  return lines;
}

}  // namespace

int verify_graphs(const config::Config& requested) {
  const int64_t world_size = planned_world_size(requested.run), vocab_size = requested.model.vocab_size;
  const config::Config config =
      checked_config(verify::graph_check_config(requested), world_size, config::Use::capture);
  std::vector<verify::GraphCheck> ranks(static_cast<size_t>(world_size));
  launch_ranks(config, {}, [&](const comm::World& world) {
    ranks[static_cast<size_t>(world.rank())] = verify::check_graphs(config, world, vocab_size);
  });
  size_t found = 0;
  std::vector<tape_check::RankCalls> calls;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    found += print("rank " + std::to_string(rank) + ": ", ranks[rank].findings);
    calls.push_back(std::move(ranks[rank].calls));
  }
  found += print("", tape_check::compare_calls(calls));

  // Accesses outside operations are detected on one rank only.
  const config::Config alone = checked_config(verify::single_rank_config(config), 1, config::Use::capture);
  verify::GraphCheck guarded;
  launch_ranks(alone, {}, [&](const comm::World& world) {
    guarded = verify::check_graphs(alone, world, vocab_size, {tape_check::CheckedGraphs::Way::guarded, 1});
  });
  found += print("one rank, in a closed arena: ", guarded.findings);
  std::printf("%s: a training step has %zu operations on rank 0, an evaluation step %zu; %zu findings\n",
              found == 0 ? "CAPTURABLE" : "NOT CAPTURABLE", ranks[0].training, ranks[0].evaluation, found);
  return found == 0 ? kExitOk : kExitNumerics;
}

}  // namespace metroplex::apps
