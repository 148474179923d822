// The four moments of a segment: before and after its forward, before and after its backward. Whatever goes on around
// computation hangs here, in one place: gathering sharded parameters ahead, and the memory report.
#pragma once

namespace metroplex::nn {

enum class Pass { forward, backward };

// Segments are counted within one stage. A forward that backward repeats (recompute) is announced as a forward.
class Moments {
 public:
  virtual ~Moments() = default;
  // `next` is the segment whose turn comes after this one in the same call of the stage; -1: none.
  virtual void before(int segment, Pass pass, int next) = 0;
  virtual void after(int segment, Pass pass) = 0;
};

}  // namespace metroplex::nn
