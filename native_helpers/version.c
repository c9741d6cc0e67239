/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * In every program, for `ctrmgr doctor`: whether they and the Python package are of one build can be read in the file.
 */
extern const char ctrmgr_version[];
__attribute__((used)) const char ctrmgr_version[] = "@(#)ctrmgr-version " CTRMGR_VERSION "\n";
