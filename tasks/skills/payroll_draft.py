"""``cuo.cfo.payroll-draft``: a compensation skill, whose body nobody may find later.

``body_excluded=True`` keeps its result, and the texts of its errors, in the process that runs the
body: a caller gets a reference. The audit is not affected: both rows are written, with the hashes
of arguments and result, because THAT it was called is auditable.
"""

from __future__ import annotations

from typing import TypedDict

from tasks import skill


class Employee(TypedDict):
    """Amounts are whole cents, rates are basis points (1/100 of a percent)."""

    employee_id: str
    gross_cents: int
    tax_basis_points: int


@skill(
    "cuo.cfo.payroll-draft", version="1.0.0", body_excluded=True, soft_time_limit=20, time_limit=30
)
def payroll_draft(period: str, employees: list[Employee]) -> dict[str, object]:
    """Draft the payments of one period.

    Args:
        period: e.g. ``"2026-11"``.
        employees: who is paid how much before tax.

    Returns:
        The period, the net payment of each employee and their sum, in cents.

    Raises:
        ValueError: a gross amount is negative, or a rate is not between 0 and 10,000.
    """
    payments = {person["employee_id"]: _net_cents(person) for person in employees}
    return {"period": period, "payments": payments, "total_cents": sum(payments.values())}


def _net_cents(person: Employee) -> int:
    gross, rate = person["gross_cents"], person["tax_basis_points"]
    if gross < 0 or not 0 <= rate <= 10_000:
        raise ValueError("a gross amount is negative or a tax rate is out of range")
    return gross - (gross * rate + 5_000) // 10_000
