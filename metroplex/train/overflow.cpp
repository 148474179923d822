#include "train/step_errors.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "cuda/host_read.h"
#include "moe/paged_stash.h"

namespace metroplex::train {

// Of the stash for rows of experts; empty: it had pages enough.
static std::string stash_overflow(const Assembly& a) {
  if (!a.experts->stash) return {};
  const moe::PagedStash::Shortage shortage = a.experts->stash->shortage();
  if (shortage.layer.empty()) return {};
  const config::Model& model = a.config.model;
  std::string text = base::concat(shortage.layer, ": backward keeps rows on ", shortage.wanted,
                                  " pages at one time, the stash has ", shortage.pages);
  const double factor = model.moe_paged_stash_buffer_size_factor_cuda * static_cast<double>(shortage.wanted) /
                        static_cast<double>(std::max<int64_t>(shortage.pages, 1));
  MPX_CHECK(model.moe_overflow_policy != config::OverflowPolicy::stop, "moe", text,
            " (model.moe_paged_stash_buffer_size_factor_cuda = ", model.moe_paged_stash_buffer_size_factor_cuda,
            "); raise it to ", std::ceil(factor * 100) / 100, " or more, or set model.moe_overflow_policy to redo");
  return text;
}

std::string overflow_of(const Assembly& a, const std::string& elsewhere) {
  double least = 0;  // factor with which all rows would have found room
  std::string text;
  const config::Model& model = a.config.model;
  for (const moe::StaticBuffers::Layer& layer : a.experts->buffers->layers) {
    const at::Tensor wanted = cuda::read_on_host(a.world->target(), layer.wanted);
    const auto* rows = wanted.const_data_ptr<int64_t>();
    const auto* worst = std::max_element(rows, rows + wanted.numel());
    if (*worst <= layer.room) continue;
    const double factor = model.moe_expert_rank_capacity_factor * static_cast<double>(*worst) /
                          static_cast<double>(std::max<int64_t>(layer.room, 1));
    if (factor <= least) continue;
    least = factor;
    text = base::concat("layer ", layer.number, ": ", *worst, " rows for rank ", worst - rows,
                        " of ep, which has room for ", layer.room);
  }
  if (text.empty()) text = stash_overflow(a);
  if (text.empty()) text = "expert rows: " + elsewhere;
  MPX_CHECK(model.moe_overflow_policy != config::OverflowPolicy::stop, "moe", text,
            " (model.moe_expert_rank_capacity_factor = ", model.moe_expert_rank_capacity_factor, "); raise it",
            least > 0 ? base::concat(" to ", std::ceil(least * 100) / 100, " or more") : "",
            ", or set model.moe_overflow_policy to redo");
  return text;
}

}  // namespace metroplex::train
