// What a case of each list of a vector file must hold, as data. A case of another form (a key missing, a key that
// nobody reads) fails by its name and is taken out, so that the runners see whole cases only and the others run.
#pragma once

#include <string>

#include "conformance/report.h"

namespace metroplex::conformance {

// The keys of a case, separated by spaces; a name that ends in * stands for all that begin so. Where a case records a
// refusal (see `refusal`), what the program gave need not be there.
struct Form {
  const char* path;  // "schedules.configs": every object of that list, or that object
  const char* given;
  const char* result;
  const char* optional;
};

// `file` without its malformed cases, which become failures of `report`. In cases that record a refusal, results that
// are missing become null. `stem` names the file in the table of forms.
Json well_formed(const std::string& stem, const Json& file, Report& report);

}  // namespace metroplex::conformance
