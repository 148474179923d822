#include "replay/step_trace.h"

#include <array>
#include <utility>

#include "base/error.h"

namespace metroplex::replay {

const TracedAction& StepTrace::find(plan::ActionKind kind, int chunk, Position position) const {
  const std::array<Position, 3> order =
      position == Position::last     ? std::array{Position::last, Position::middle, Position::first}
      : position == Position::middle ? std::array{Position::middle, Position::first, Position::last}
                                     : std::array{Position::first, Position::last, Position::middle};
  for (const Position wanted : order) {
    for (const TracedAction& action : actions) {
      if (action.kind == kind && action.chunk == chunk && action.position == wanted) return action;
    }
  }
  MPX_ASSERT(false, "no trace of a ", plan::action_name(kind), " of chunk ", chunk);
}

}  // namespace metroplex::replay
