#include "plan/pipeline_table.h"

#include "base/error.h"

namespace metroplex::plan {

const char* action_name(ActionKind kind) {
  switch (kind) {
    case ActionKind::forward:
      return "forward";
    case ActionKind::backward:
      return "backward";
    case ActionKind::weight:
      return "weight";
    case ActionKind::send_forward:
      return "send_forward";
    case ActionKind::recv_forward:
      return "recv_forward";
    case ActionKind::send_backward:
      return "send_backward";
    case ActionKind::recv_backward:
      return "recv_backward";
    case ActionKind::free:
      return "free";
  }
  MPX_ASSERT(false, "unknown action kind ", static_cast<int>(kind));
}

}  // namespace metroplex::plan
