// Between the start of a communication call and its wait: nobody writes what it reads, nobody touches what it writes.
// A peer that is slow still sends, or still reads; on a fast machine nothing of it shows.
#pragma once

#include <vector>

#include "cuda/graph/tape_findings.h"

namespace metroplex::cuda {

// Also finds the calls that are not waited for within the tape: a replay would start them a second time.
std::vector<Finding> check_flights(const Tape& tape);

}  // namespace metroplex::cuda
