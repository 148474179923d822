// The process side of a run: how many ranks, where, over what, seeded how.
#pragma once

#include <cstdint>
#include <string>

namespace metroplex::config {

struct Run {
  std::string name = "metroplex";
  int64_t seed = 1234;
  int64_t nproc = 0;             // ranks started by our own launcher; 0: the launcher's environment decides, else 1
  std::string backend = "auto";  // auto | threads | gloo | nccl
  std::string device = "auto";   // auto | cpu | cuda; see device_choice.h
  int64_t threads_per_rank = 0;  // 0: cores / local ranks, at least 1
  int64_t distributed_timeout_minutes = 10;
  int64_t master_port = 0;          // 0: a free one
  std::string network_interface{};  // of the control plane and of gloo: "eth0"; empty: GLOO_SOCKET_IFNAME, else found
  bool deterministic_mode = false;
};

}  // namespace metroplex::config
