#include "step/step_errors.h"

#include <ATen/ops/full.h>

#include <cmath>

#include "base/error.h"
#include "comm/collectives.h"
#include "moe/paged_stash.h"

namespace metroplex::step {
namespace {

// Returns the report of the rank that needs the largest factor, and that factor; the same on all ranks.
moe::NoRoom reduce_worst(const moe::NoRoom& mine, const comm::Group& world) {
  const at::Tensor factor = at::full({1}, mine.factor, at::kDouble);
  comm::all_reduce(factor, world, comm::ReduceOp::max);
  moe::NoRoom worst{{}, factor.item<double>()};
  for (const std::string& text : comm::gather_strings(mine.factor == worst.factor ? mine.text : "", world)) {
    if (worst.text.empty()) worst.text = text;
  }
  worst.text = comm::broadcast_string(worst.text, world);
  return worst;
}

struct Overflow {
  std::string text, suggested_fix;
};

Overflow make_overflow(const moe::NoRoom& worst, const char* key, double factor) {
  // Rounds up to two decimals.
  return {worst.text, base::concat("model.", key, " = ", factor, "); raise it to ",
                                   std::ceil(worst.factor * 100) / 100, " or more")};
}

Overflow find_overflow(const ProcessContext& process, const RankModel& model) {
  const config::Model& keys = process.config.model;
  const comm::Group& world = process.groups().world;
  const moe::NoRoom rows = reduce_worst(model.experts->buffers->no_room(process.world->target()), world);
  if (!rows.text.empty())
    return make_overflow(rows, "moe_expert_rank_capacity_factor", keys.moe_expert_rank_capacity_factor);
  const moe::NoRoom pages =
      reduce_worst(model.experts->stash ? model.experts->stash->no_room() : moe::NoRoom(), world);
  if (!pages.text.empty())
    return make_overflow(pages, "moe_paged_stash_buffer_size_factor_cuda",
                         keys.moe_paged_stash_buffer_size_factor_cuda);
  return {"rows of experts from one rank to another",
          base::concat("model.moe_rank_pair_capacity_factor = ", keys.moe_rank_pair_capacity_factor,
                       "); raise it, or set it to 0")};
}

}  // namespace

std::string check_overflow(const ProcessContext& process, const RankModel& model) {
  const Overflow overflow = find_overflow(process, model);
  MPX_CHECK(process.config.model.moe_overflow_policy != config::OverflowPolicy::stop, "moe", overflow.text, " (",
            overflow.suggested_fix, ", or set model.moe_overflow_policy to redo");
  return overflow.text;
}

}  // namespace metroplex::step
