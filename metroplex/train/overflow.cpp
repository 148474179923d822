#include "train/step_errors.h"

#include <cmath>

#include "base/error.h"
#include "comm/collectives.h"
#include "moe/paged_stash.h"

namespace metroplex::train {
namespace {

// What found no room on this rank, and behind a line feed the key that gives more; empty: all did.
std::string own_overflow(const Assembly& a) {
  const config::Model& model = a.config.model;
  const auto described = [](const moe::NoRoom& found, const char* key, double factor) {
    return base::concat(found.text, "\n (model.", key, " = ", factor, "); raise it to ",
                        std::ceil(found.times * factor * 100) / 100, " or more");
  };
  const moe::NoRoom rows = a.experts->buffers->no_room(a.world->target());
  if (!rows.text.empty())
    return described(rows, "moe_expert_rank_capacity_factor", model.moe_expert_rank_capacity_factor);
  const moe::NoRoom pages = a.experts->stash ? a.experts->stash->no_room() : moe::NoRoom();
  if (pages.text.empty()) return {};
  return described(pages, "moe_paged_stash_buffer_size_factor_cuda", model.moe_paged_stash_buffer_size_factor_cuda);
}

}  // namespace

std::string overflow_of(const Assembly& a) {
  const comm::Group& world = a.groups().world;
  std::string first;
  for (const std::string& text : comm::gather_strings(own_overflow(a), world)) {
    if (first.empty()) first = text;
  }
  if (first.empty()) {  // buffers and pages sufficed
    first = base::concat("rows of experts from one rank to another\n (model.moe_rank_pair_capacity_factor = ",
                         a.config.model.moe_rank_pair_capacity_factor, "); raise it, or set it to 0");
  }
  first = comm::broadcast_string(first, world);
  const size_t end = first.find('\n');
  const std::string what = first.substr(0, end), way_out = first.substr(end + 1);
  MPX_CHECK(a.config.model.moe_overflow_policy != config::OverflowPolicy::stop, "moe", what, way_out,
            ", or set model.moe_overflow_policy to redo");
  return what;
}

}  // namespace metroplex::train
