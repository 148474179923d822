// SIGTERM and SIGINT as a flag that the training loop asks for once a step. The second one ends the process at once.
#pragma once

#include <csignal>

namespace metroplex::apps {

class StopSignal {
 public:
  StopSignal();
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;
  static bool requested();

 private:
  struct sigaction old_term_ {
  }, old_int_{};
};

}  // namespace metroplex::apps
