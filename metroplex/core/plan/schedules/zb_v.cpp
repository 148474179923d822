#include "plan/schedules/registry.h"

#include <optional>

#include "base/error.h"
#include "plan/greedy.h"
#include "plan/table_writer.h"

namespace metroplex::plan {

PipelineTable build_zb_v(const ScheduleRequest& request) {
  const PipelineTable shape = make_v_table(request, "zb_v");
  if (request.forward_only) return add_transfers(forward_order(shape), {});
  GreedyRules rules;
  rules.live_limits.assign(static_cast<size_t>(request.num_stages), 2 * request.num_stages);
  const std::optional<PipelineTable> order = shortest_greedy_order(shape, {}, rules);
  MPX_ASSERT(order.has_value(), "zb_v has no order for ", request.num_stages, " ranks");
  return add_transfers(*order, {});
}

}  // namespace metroplex::plan
