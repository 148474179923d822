#include <cuda_runtime.h>

namespace metroplex::kernels_on_host {

std::string& last_finding() {
  static auto* const text = new std::string;
  return *text;
}

namespace {

struct Vote {
  unsigned value, result;
};

template <class Join>
void join(void* const* lanes, const Join& join_two) {
  unsigned result = 0;
  for (unsigned lane = 0; lane < kWarp; ++lane) {
    if (lanes[lane] != nullptr) result = join_two(result, static_cast<Vote*>(lanes[lane])->value);
  }
  for (unsigned lane = 0; lane < kWarp; ++lane) {
    if (lanes[lane] != nullptr) static_cast<Vote*>(lanes[lane])->result = result;
  }
}

}  // namespace

unsigned ballot(const WarpMeeting& meeting, unsigned mask, bool yes) {
  Vote mine{yes ? 1U << thread_index().x % kWarp : 0, 0};
  warp_meets(meeting, mask, &mine,
             [](void* const* lanes) { join(lanes, [](unsigned a, unsigned b) { return a | b; }); });
  return mine.result;
}

unsigned reduce_max(const WarpMeeting& meeting, unsigned mask, unsigned value) {
  Vote mine{value, 0};
  warp_meets(meeting, mask, &mine,
             [](void* const* lanes) { join(lanes, [](unsigned a, unsigned b) { return a > b ? a : b; }); });
  return mine.result;
}

unsigned match_any(const WarpMeeting& meeting, unsigned mask, unsigned value) {
  Vote mine{value, 0};
  warp_meets(meeting, mask, &mine, [](void* const* lanes) {
    for (unsigned lane = 0; lane < kWarp; ++lane) {
      if (lanes[lane] == nullptr) continue;
      auto* const to = static_cast<Vote*>(lanes[lane]);
      to->result = 0;
      for (unsigned other = 0; other < kWarp; ++other) {
        if (lanes[other] != nullptr && static_cast<const Vote*>(lanes[other])->value == to->value)
          to->result |= 1U << other;
      }
    }
  });
  return mine.result;
}

}  // namespace metroplex::kernels_on_host
