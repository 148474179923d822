#include <algorithm>

#include "kernels/echo_plan.h"

namespace metroplex::kernels {
namespace {

// Builds the lists of replicas and the end of each one's rows from shape.rank.
void link_replicas(const plan::EchoPlan& plan, const EchoPlanPlace& place, const EchoPlanShape& shape) {
  const int replicas = shape.sizes.replicas();
  std::fill_n(place.first, shape.sizes.experts, -1);
  for (int replica = replicas - 1; replica >= 0; --replica) {
    const int32_t expert = plan.owner[static_cast<size_t>(replica)];
    place.next[replica] = -1;
    place.ends[replica] = 0;
    if (expert < 0) continue;
    place.next[replica] = place.first[expert];
    place.first[expert] = replica;
  }
  for (int expert = 0; expert < shape.sizes.experts; ++expert) {
    int64_t end = 0;
    for (int32_t replica = place.first[expert]; replica >= 0; replica = place.next[replica])
      place.ends[replica] = end += plan.from(shape.rank, replica);
  }
}

}  // namespace

void echo_plan(const int64_t* counts, const EchoPlanPlace& place, const EchoPlanShape& shape) {
  const plan::EchoPlan plan = plan::plan_echo({counts, shape.sizes}, shape.options);
  std::copy(plan.owner.begin(), plan.owner.end(), place.owner);
  std::copy(plan.source_rows.begin(), plan.source_rows.end(), place.source_rows);
  std::copy(plan.final_loads.begin(), plan.final_loads.end(), place.final_loads);
  link_replicas(plan, place, shape);
}

void echo_columns(const EchoColumnsPlace& place, const EchoColumnsShape& shape) {
  for (int64_t a = 0; a < shape.assignments; ++a) { place.columns[a] = echo_column(place, shape.sizes, a); }
}

}  // namespace metroplex::kernels
