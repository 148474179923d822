#include "upper/stop_signal.h"

namespace metroplex::apps {
namespace {

// A signal handler can reach nothing but a global of this type.
volatile std::sig_atomic_t stop_requested = 0;

void on_signal(int signal) {
  stop_requested = 1;
  std::signal(signal, SIG_DFL);  // a second one is not negotiable
}

}  // namespace

StopSignal::StopSignal() {
  stop_requested = 0;
  struct sigaction action {};
  action.sa_handler = on_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  sigaction(SIGTERM, &action, &old_term_);
  sigaction(SIGINT, &action, &old_int_);
}

StopSignal::~StopSignal() {
  sigaction(SIGTERM, &old_term_, nullptr);
  sigaction(SIGINT, &old_int_, nullptr);
}

bool StopSignal::requested() { return stop_requested != 0; }

}  // namespace metroplex::apps
