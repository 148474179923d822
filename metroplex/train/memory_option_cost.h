// What another setting costs in time, about: the operations and the bytes of a step that it adds, as a share of the
// step's operations. It orders memory options, no more.
#pragma once

#include "train/fit.h"

namespace metroplex::train {

// `before` and `after` are figures of the same rank, under `now` and under `then`. 0 where nothing is added.
double added_cost(const FitRequest& now, const RankFigures& before, const FitRequest& then, const RankFigures& after);

}  // namespace metroplex::train
