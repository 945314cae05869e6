// Exact sums of weights times shares, the same to the bit in whatever order they are added up.
#pragma once
#include "vectors.h"

namespace fedkeel {

// As `exact_mean` in mean.py, which says what the two parts are; numbers are scaled by 1 / COARSE here.
constexpr double COARSE = 0x1p-26, FINER = 0x1p33;

// Adds rows [k][size] times shares [k] to both parts, for the columns from `first` on, at most COLUMNS of them.
// Whether no addend was too large for this, or not a number.
constexpr int64_t COLUMNS = 512;
template <class T>
static bool add_up(const T* rows, int64_t next, const double* shares, int64_t k, int64_t size, int64_t first,
                   double* coarse, double* fine) {
  typedef Vectors<double> D;
  typedef typename D::V V;
  typedef T Part __attribute__((vector_size(sizeof(T) * D::L)));
  typedef T Anywhere __attribute__((vector_size(sizeof(T) * D::L), aligned(sizeof(T)), may_alias));
  const V magic = D::all(0x1.8p52), most = D::all(0x1p51);  // adding the former rounds to a whole number
  const int64_t count = std::min(COLUMNS, size - first);
  V high[COLUMNS / D::L] = {}, low[COLUMNS / D::L] = {};
  typename D::I right = D::first(D::L);
  for (int64_t row = 0; row < k; row++) {
    const T* w = rows + row * next + first;
    const V share = D::all(shares[row]);
    for (int64_t i = 0; i < count; i += D::L) {
      Part some = {};
      if (i + D::L <= count) some = *(const Anywhere*)(w + i);
      else
        for (int64_t l = 0; l < count - i; l++) some[l] = w[i + l];
      V addend = __builtin_convertvector(some, V) * share;
      asm volatile("" : "+x"(addend));  // rounded here, as it is without kernels
      const V whole = (addend + magic) - magic;
      right &= (addend < most) & (addend > -most);
      high[i / D::L] += whole;
      low[i / D::L] += ((addend - whole) * FINER + magic) - magic;
    }
  }
  for (int64_t i = 0; i < count; i++) {
    coarse[first + i] = high[i / D::L][i % D::L] * COARSE;
    fine[first + i] = low[i / D::L][i % D::L] * (COARSE / FINER);
  }
  bool all = true;
  for (int l = 0; l < D::L; l++) all = all && right[l];
  return all;
}

}  // namespace fedkeel
